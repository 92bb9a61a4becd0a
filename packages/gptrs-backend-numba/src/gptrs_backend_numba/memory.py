"""Addresses of NumPy arrays, and arrays that begin at a cache line."""

from __future__ import annotations

import weakref

import numpy as np

_ALIGNMENT = 64
"""Bytes of a cache line; vectors that straddle two are slower."""
_BLOCK = 1 << 26
"""Bytes of a block of an arena. Of those that nothing was written to, none is taken."""


def address_of(array: np.ndarray) -> int:
    """Where the first element lies; the caller must keep the array alive."""
    return array.__array_interface__["data"][0]


def aligned(nbytes: int) -> np.ndarray:
    """An uninitialized byte array that begins at a cache line."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -address_of(raw) % _ALIGNMENT
    return raw[start : start + nbytes]


class Arena:
    """Makes arrays that stay: pieces of blocks that are large enough for large pages.

    To read through matrices in small pages takes a fifth longer. A block goes with its last piece.
    """

    def __init__(self) -> None:
        self._block = weakref.ref(np.empty(0, np.uint8))
        self._used = 0

    def aligned(self, nbytes: int) -> np.ndarray:
        """As the function of this name."""
        if nbytes > _BLOCK // 4:
            return aligned(nbytes)
        block = self._block()
        if block is None or self._used + nbytes > block.nbytes:
            block = np.empty(_BLOCK, np.uint8)
            self._block, self._used = weakref.ref(block), -address_of(block) % _ALIGNMENT
        piece = block[self._used : self._used + nbytes]
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return piece
