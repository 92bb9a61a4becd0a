"""Sound in WAV files, as one channel of a sampling rate that is asked for."""

from __future__ import annotations

import math
import os
import wave
from pathlib import Path
from typing import Final

import numpy as np

from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.errors import UsageError
from gptrs.quoting import quoted

_OTHERS: Final = (".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".webm", ".mp4")
_CONVERT: Final = "convert it, such as with `ffmpeg -i FILE -ar 16000 -ac 1 FILE.wav`"
_MOST_SECONDS: Final = 24 * 3600
_LOBES: Final = 10
_BETA: Final = 5.0


def read_sound(path: str | Path, rate: int) -> np.ndarray:
    """Return the sound of a WAV file in [-1, 1] at `rate`, f32 [N], the mean of its channels.

    ModelError for a file that cannot be opened; UsageError for one that is damaged, empty, or of
    another format: WAV files hold integers of 8, 16, 24 or 32 bits.
    """
    shown = quoted(str(path), 200)
    if Path(path).suffix.lower() in _OTHERS:
        raise UsageError(f"{shown} is no WAV file, and no other is read", hint=_CONVERT)
    try:
        with (
            os.fdopen(open_regular(resolved(path)), "rb") as opened,
            wave.open(opened, "rb") as file,
        ):
            channels, width, own_rate = (
                file.getnchannels(),
                file.getsampwidth(),
                file.getframerate(),
            )
            if file.getnframes() > _MOST_SECONDS * own_rate:
                raise UsageError(f"{shown} is longer than a day", hint="cut it into parts")
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as problem:
        reason = str(problem) or "it ends early"
        raise UsageError(f"{shown} cannot be read as a WAV file: {reason}", hint=_CONVERT) from None
    if own_rate < 1 or width not in (1, 2, 3, 4):
        raise UsageError(f"{shown} has samples of {width} bytes at {own_rate} Hz", hint=_CONVERT)
    samples = _integers(data[: len(data) // (width * channels) * width * channels], width)
    mono = samples.reshape(-1, channels).mean(axis=1)
    if not mono.size:
        raise UsageError(f"{shown} holds no sound")
    return resampled(mono, own_rate, rate).astype(np.float32)


def _integers(data: bytes, width: int) -> np.ndarray:
    """Return samples in [-1, 1], f64; those of 8 bits are unsigned."""
    raw = np.frombuffer(data, np.uint8)
    if width == 1:
        return (raw.astype(np.float64) - 128) / 128
    high = np.zeros((raw.size // width, 4), np.uint8)
    high[:, 4 - width :] = raw.reshape(-1, width)
    return high.view("<i4")[:, 0] / 2.0**31


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return f64 samples at another rate, by a polyphase filter.

    A sinc of 10 lobes on each side in a Kaiser window of 5, as `scipy.signal.resample_poly` does.
    """
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    if up == down:
        return samples
    most = max(up, down)
    half = _LOBES * most
    taps = np.sinc(np.arange(-half, half + 1) / most) * np.kaiser(2 * half + 1, _BETA)
    taps *= up / taps.sum()
    count = -(-samples.size * up // down)
    found = np.empty(count)
    reach = half // up + 1
    padded = np.concatenate([np.zeros(reach + 1), samples, np.zeros(reach + 1)])
    for phase in range(min(up, count)):
        places = np.arange(phase, count, up) * down  # places in the raised signal
        first = places // up
        offset = int(places[0] - first[0] * up)
        steps = np.arange(-reach, reach + 1)
        index = half + offset - steps * up
        kept = (index >= 0) & (index < taps.size)
        total = np.zeros(places.size)
        for step, tap in zip(steps[kept], taps[index[kept]], strict=True):
            total += tap * padded[np.minimum(first + step + reach + 1, padded.size - 1)]
        found[phase::up] = total
    return found
