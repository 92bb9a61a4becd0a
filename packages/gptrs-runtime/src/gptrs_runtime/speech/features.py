"""Log-mel features of sound."""

from __future__ import annotations

from typing import Final

import numpy as np

RATE: Final = 16_000
"""Samples of a second."""
HOP: Final = 160
"""Samples between two frames."""
_SIZE: Final = 400
"""Samples of a frame."""
_BINS: Final = _SIZE // 2 + 1
_BLOCK: Final = 300
"""Frames that are transformed together: their spectrum stays in the processor's cache."""
_SMALLEST: Final = 1e-10
_RANGE: Final = 8.0
_NOTE_HZ: Final = 200 / 3
_FIRST_LOG_HZ: Final = 1000.0
_LOG_STEP: Final = np.log(6.4) / 27


def log_mel(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the features f32 [mels, N // 160] of sound f32 [N] at 16 kHz.

    Frames of 400 samples in a Hann window, their power in `mels` bands of Slaney's scale up to
    8 kHz, its logarithm of base 10 within 8 of the largest one, scaled. At the ends the sound is
    mirrored. Computed in f64: quiet bands beside loud ones would be lost in f32.
    """
    padded = np.pad(samples.astype(np.float64), _SIZE // 2, mode="reflect")
    count = samples.size // HOP
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::HOP][:count]
    filters, logs = mel_filters(mels), np.empty((count, mels))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SIZE) / _SIZE)
    for start in range(0, count, _BLOCK):
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * window)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        logs[start : start + _BLOCK] = np.log10(np.maximum(power @ filters, _SMALLEST))
    lowest = logs.max(initial=-np.inf) - _RANGE
    return ((np.maximum(logs.T, lowest) + 4) / 4).astype(np.float32)


def mel_filters(mels: int) -> np.ndarray:
    """Return the share of each frequency in each band, f64 [201, mels]: triangles of equal area."""
    top = _mel(np.array(RATE / 2))
    edges = _hertz(np.linspace(0, top, mels + 2))
    frequencies = np.linspace(0, RATE / 2, _BINS)[:, None]
    below = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    above = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(below, above)) * (2 / (edges[2:] - edges[:-2]))


def _mel(hertz: np.ndarray) -> np.ndarray:
    first = _FIRST_LOG_HZ / _NOTE_HZ
    high = first + np.log(np.maximum(hertz, _FIRST_LOG_HZ) / _FIRST_LOG_HZ) / _LOG_STEP
    return np.where(hertz < _FIRST_LOG_HZ, hertz / _NOTE_HZ, high)


def _hertz(mel: np.ndarray) -> np.ndarray:
    first = _FIRST_LOG_HZ / _NOTE_HZ
    high = _FIRST_LOG_HZ * np.exp(_LOG_STEP * np.maximum(mel - first, 0))
    return np.where(mel < first, mel * _NOTE_HZ, high)
