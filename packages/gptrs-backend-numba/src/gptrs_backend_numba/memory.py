"""Addresses of NumPy arrays, and arrays that begin at a cache line."""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 64
"""Bytes of a cache line; vectors that straddle two are slower."""


def address_of(array: np.ndarray) -> int:
    """Where the first element lies; the caller must keep the array alive."""
    return array.__array_interface__["data"][0]


def aligned(nbytes: int) -> np.ndarray:
    """An uninitialized byte array that begins at a cache line."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -address_of(raw) % _ALIGNMENT
    return raw[start : start + nbytes]
