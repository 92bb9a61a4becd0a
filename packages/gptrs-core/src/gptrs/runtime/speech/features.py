"""Log-mel features of sound: its spectrum is two products of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from gptrs import functionals as F
from gptrs.backend.protocol import Backend
from gptrs.capture.backend_choice import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor, tensor

RATE: Final = 16_000
"""Samples of a second."""
HOP: Final = 160
"""Samples between two frames."""
_SIZE: Final = 400
"""Samples of a frame."""
_BINS: Final = _SIZE // 2 + 1
_BLOCK: Final = 1000
"""Frames that run together."""
_SMALLEST: Final = 1e-10
_RANGE: Final = 8.0
_NOTE_HZ: Final = 200 / 3
_FIRST_LOG_HZ: Final = 1000.0
_LOG_STEP: Final = np.log(6.4) / 27


def log_mel(samples: np.ndarray, mels: int, backend: Backend) -> np.ndarray:
    """Return the features f32 [mels, N // 160] of sound f32 [N] at 16 kHz.

    Frames of 400 samples in a Hann window, their power in `mels` bands of Slaney's scale up to
    8 kHz, its logarithm of base 10 within 8 of the largest one, scaled. At the ends the sound is
    mirrored. Computed in f64: quiet bands beside loud ones would be lost in f32.
    """
    padded = np.pad(samples.astype(np.float64), _SIZE // 2, mode="reflect")
    count = samples.size // HOP
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::HOP][:count]
    blocks: list[np.ndarray] = []
    with use_backend(backend):
        for start in range(0, count, _BLOCK):
            block = np.zeros((_BLOCK, _SIZE))
            part = frames[start : start + _BLOCK]
            block[: len(part)] = part
            blocks.append(_bands(tensor(block), *_matrices(mels)).numpy()[: len(part)])
    logs = np.concatenate(blocks).T
    return ((np.maximum(logs, logs.max() - _RANGE) + 4) / 4).astype(np.float32)


@jit
def _bands(frames: Tensor, cosines: Tensor, sines: Tensor, filters: Tensor) -> Tensor:
    """Return log10 of the power in each band, [T, 400] -> [T, mels]."""
    power = F.square(F.matmul(frames, cosines)) + F.square(F.matmul(frames, sines))
    return F.log(F.clamp(F.matmul(power, filters), _SMALLEST)) * (1 / np.log(10))


@lru_cache(maxsize=4)
def _matrices(mels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the windowed cosines and sines of each frequency, [400, 201], and `mel_filters`."""
    place = np.arange(_SIZE)[:, None]
    angle = 2 * np.pi * (place * np.arange(_BINS) % _SIZE) / _SIZE
    window = 0.5 - 0.5 * np.cos(2 * np.pi * place / _SIZE)
    parts = (window * np.cos(angle), window * np.sin(angle), mel_filters(mels))
    first, second, third = (tensor(part) for part in parts)
    return first, second, third


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
