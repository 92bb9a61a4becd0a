"""What an executable remembers between runs: where arrays are, and which ones it was given."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import compress
from operator import ne

import numpy as np


class Location:
    """Where a storage is now, written to the words of a schedule that depend on it.

    `uses` are positions among `words`, each with the bytes to add to the address.
    """

    __slots__ = ("_uses", "_words", "address")

    def __init__(self, words: memoryview, uses: Sequence[tuple[int, int]]) -> None:
        self.address = -1
        self._words = words
        self._uses = uses

    def move(self, address: int) -> None:
        """The storage is at `address` from now on."""
        if self.address == address:
            return
        self.address = address
        for position, offset in self._uses:
            self._words[position] = address + offset


class BoundArrays:
    """Which array each input was bound to last, without keeping it alive.

    Identities are compared, since to ask as many weak references takes longer than small kernels;
    the one of an array that goes is forgotten before another array can have it.
    """

    def __init__(self, count: int) -> None:
        self._identities = [0] * count
        self._watching: list[weakref.ref[np.ndarray] | None] = [None] * count

    def others(self, identities: Sequence[int]) -> list[int]:
        """The inputs that are other arrays now, by `id`, or that were not remembered."""
        return list(compress(range(len(identities)), map(ne, identities, self._identities)))

    def remember(self, index: int, array: np.ndarray) -> None:
        """An input is bound to `array`."""
        identities = self._identities  # what a reference calls must not keep its holder alive
        self._watching[index] = weakref.ref(array, lambda _: identities.__setitem__(index, 0))
        identities[index] = id(array)

    def forget(self, index: int) -> None:
        """An input is bound to an array that nobody will give again."""
        self._watching[index] = None
        self._identities[index] = 0
