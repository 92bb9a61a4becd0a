"""The samples of MP3, FLAC, Ogg, M4A, WebM, AAC and AIFF files, decoded by PyAV."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import IO, Any, Final, cast

import numpy as np

from gptrs.errors import MissingLibraryError
from gptrs.install_hints import install_extra
from gptrs_runtime.speech.wave_files import SoundFileError, finite

FORMATS: Final = ("MP3", "FLAC", "Ogg", "M4A", "MP4", "WebM", "AAC", "AIFF")
_HEAD: Final = 12
"""Bytes that show the format."""
_TAG_HEAD: Final = 10
"""Bytes at the start of an ID3 tag; the last four are its size, in 7 bits each."""
_LOG = logging.getLogger("gptrs")


def container_of(file: IO[bytes]) -> str | None:
    """Return FFmpeg's name of the container of an open file, None for one that is not decoded.

    Only containers that hold sound themselves: FFmpeg also knows some that name other files.
    """
    file.seek(0)
    head = file.read(_HEAD)
    tagged = head[:3] == b"ID3"
    if tagged:
        size = sum(byte << 7 * (3 - at) for at, byte in enumerate(head[6:_TAG_HEAD]))
        file.seek(_TAG_HEAD + size)
        head = file.read(_HEAD)
    known = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
    if head[:4] in known:
        return known[head[:4]]
    if head[4:8] == b"ftyp":
        return "mov"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "mp3" if head[1] & 0x06 else "aac"  # a frame of MPEG of no layer is one of ADTS
    return "mp3" if tagged else None


class EncodedFile:
    """An open file of encoded sound: `rate` frames a second, `size` of them.

    It is decoded in order, and again from its start for what lies before: decoders do not find
    positions exactly, and headers estimate sizes. Damaged parts are left out with a warning.
    """

    def __init__(self, file: IO[bytes], container: str, shown: str, most_seconds: int) -> None:
        """Decode it once to count its frames, up to one more than `most_seconds` of them.

        SoundFileError for a file without sound that can be decoded; MissingLibraryError without
        PyAV.
        """
        self._library = _library()
        self._file, self._container = file, container
        self.rate = self.channels = self.size = self._damaged = 0
        for part in self._decoded():
            self.size += len(part)
            if self.size > most_seconds * self.rate:
                break
        if self._damaged:
            _LOG.warning("%s: %d damaged parts are left out", shown, self._damaged)
        self._start_again()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return frames, f64 [stop - start, channels]: integers in [-1, 1], floats as they are."""
        if start < self._position:
            self._start_again()
        wanted = [np.zeros((0, self.channels))]
        while self._position < stop:
            if not len(self._rest):
                part = next(self._parts, None)
                if part is None:  # it has changed since it was counted
                    self._start_again()
                    raise EOFError
                self._rest = part
            skipped = max(0, start - self._position)
            count = min(len(self._rest), stop - self._position)
            wanted.append(self._rest[skipped:count])
            self._rest = self._rest[count:]
            self._position += count
        return np.concatenate(wanted)

    def _start_again(self) -> None:
        self._parts = self._decoded()
        self._position, self._rest = 0, np.zeros((0, self.channels))

    def _decoded(self) -> Iterator[np.ndarray]:
        """Yield the frames of the first stream of sound in parts, f64 [N, channels]."""
        self._file.seek(0)
        self._damaged = 0
        with self._errors(), self._library.open(self._file, format=self._container) as opened:
            streams = opened.streams.audio
            if not streams:
                raise SoundFileError("it has no sound")
            for packet in opened.demux(streams[0]):
                try:
                    frames = packet.decode()
                except self._library.error.InvalidDataError:
                    self._damaged += 1
                    continue
                yield from map(self._samples, frames)

    def _samples(self, frame: Any) -> np.ndarray:
        channels = frame.layout.nb_channels
        if not self.rate:
            self.rate, self.channels = frame.sample_rate, channels
        if (frame.sample_rate, channels) != (self.rate, self.channels):
            raise SoundFileError("its rate or its number of channels changes")
        given = cast("np.ndarray", frame.to_ndarray())
        planes = given if frame.format.is_planar else given.reshape(-1, channels).T
        samples = planes.T.astype(np.float64)
        if given.dtype.kind == "f":
            return finite(samples)
        half = 2.0 ** (8 * given.dtype.itemsize - 1)
        return samples / half - (given.dtype.kind == "u")

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (self._library.error.FFmpegError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise SoundFileError(reason.lower()) from problem


def _library() -> ModuleType:
    try:
        return importlib.import_module("av")
    except ImportError as problem:
        raise MissingLibraryError(
            f"reading sounds of {', '.join(FORMATS)} needs PyAV, which is not installed",
            hint=f"{install_extra('gptrs-runtime', 'sounds')}, or convert it to WAV",
        ) from problem
