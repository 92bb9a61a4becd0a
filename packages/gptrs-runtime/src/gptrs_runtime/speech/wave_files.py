"""The samples of a WAV file: RIFF with integers of 8 to 32 bits or floats, and RF64."""

from __future__ import annotations

import os
import struct
from typing import IO, Final

import numpy as np

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
"""Codes of formats; an extensible one has the code at the start of its GUID."""
_GUID_END: Final = bytes.fromhex("000000001000800000aa00389b71")
_UNKNOWN_SIZE: Final = 0xFFFFFFFF
_MOST_CHUNKS: Final = 1_000
_LARGEST_FORMAT: Final = 1_024


class SoundFileError(Exception):
    """A file whose samples cannot be read: damaged, or of another format."""


class WaveFile:
    """An open WAV file: `channels` of `width` bytes each, `rate` frames a second, `size` of them.

    A file that ends before its header says so has fewer frames; one whose header was not finished,
    as of a recorder that writes into a pipe, has all up to its end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """Read the header; SoundFileError if it is malformed, or for samples of other kinds."""
        self._file = file
        self._start, nbytes = self._found()
        whole = file.seek(0, os.SEEK_END)
        # Wholes of frames: a file that is cut may end within one.
        self.size = max(0, min(nbytes, whole - self._start)) // (self.width * self.channels)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return frames, f64 [stop - start, channels]: integers in [-1, 1], floats as they are."""
        frame = self.width * self.channels
        self._file.seek(self._start + start * frame)
        data = self._file.read((stop - start) * frame)
        if len(data) != (stop - start) * frame:
            raise EOFError
        samples = _floats(data, self.width) if self._is_float else _integers(data, self.width)
        return samples.reshape(-1, self.channels)

    def _found(self) -> tuple[int, int]:
        """Return where the samples begin, and how many bytes they have; keep the format."""
        kind, nbytes, form = struct.unpack("<4sI4s", self._exactly(12))
        if kind not in (b"RIFF", b"RF64") or form != b"WAVE":
            raise SoundFileError("it does not begin with RIFF and WAVE")
        long, has_format = _UNKNOWN_SIZE, False
        for _ in range(_MOST_CHUNKS):
            name, size = struct.unpack("<4sI", self._exactly(8))
            start = self._file.tell()
            if name == b"data":
                if not has_format:
                    raise SoundFileError("its samples come before their format")
                # Recorders write a size at the end, or into a pipe none.
                is_open = size == 0 and nbytes + 8 <= start
                return start, 1 << 62 if is_open else long if size == _UNKNOWN_SIZE else size
            if name == b"ds64" and size >= 16:
                long = struct.unpack("<QQ", self._exactly(16))[1]
            elif name == b"fmt ":
                self._read_format(self._exactly(min(size, _LARGEST_FORMAT)))
                has_format = True
            self._file.seek(start + size + size % 2)
        raise SoundFileError(f"it has no samples in its first {_MOST_CHUNKS} chunks")

    def _read_format(self, content: bytes) -> None:
        if len(content) < 16:
            raise SoundFileError(
                f"the format of its samples has {len(content)} bytes, fewer than 16"
            )
        code, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", content)
        if code == _EXTENSIBLE and len(content) >= 40 and content[26:40] == _GUID_END:
            code = int.from_bytes(content[24:26], "little")
        width, self._is_float = -(-bits // 8), code == _FLOATS
        known = {_INTEGERS: (1, 2, 3, 4), _FLOATS: (4, 8)}.get(code, ())
        if width not in known:
            raise SoundFileError(f"it has samples of {bits} bits of the format {code:#06x}")
        if not channels or frame != width * channels:
            raise SoundFileError(
                f"{channels} channels of {bits} bits do not fill frames of {frame} bytes"
            )
        self.channels, self.width, self.rate = channels, width, rate

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise EOFError
        return data


def _floats(data: bytes, width: int) -> np.ndarray:
    return finite(np.frombuffer(data, f"<f{width}").astype(np.float64))


def finite(samples: np.ndarray) -> np.ndarray:
    """Return samples as they are; SoundFileError for numbers that are not finite in f32."""
    # Beyond f32 they would become infinite later on.
    if not (np.abs(samples) <= np.finfo(np.float32).max).all():
        raise SoundFileError("it has samples that are not finite numbers")
    return samples


def _integers(data: bytes, width: int) -> np.ndarray:
    """Return samples in [-1, 1], f64; 8-bit samples are unsigned."""
    raw = np.frombuffer(data, np.uint8)
    if width == 1:
        return (raw.astype(np.float64) - 128) / 128
    high = np.zeros((raw.size // width, 4), np.uint8)
    high[:, 4 - width :] = raw.reshape(-1, width)
    return high.view("<i4")[:, 0] / 2.0**31
