"""Memory of an executable between runs: addresses of storages, and identities of inputs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import compress
from operator import ne

import numpy as np

from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs_backend_numba.run.sizes import Sizes


class StorageAddress:
    """The address of a storage, written to the words of a schedule that depend on it.

    `uses` are positions among `words`, each with the bytes to add to the address. Where these are
    symbolic, `sizes` writes them too, when they change.
    """

    __slots__ = ("_base", "_sized", "_sizes", "_uses", "_words", "address")

    def __init__(
        self, words: memoryview, uses: Sequence[tuple[int, int]], sizes: Sizes | None = None
    ) -> None:
        self.address = -1
        self._words = words
        symbolic = [use for use in uses if isinstance(use[1], SymbolicDim)]
        self._uses = [use for use in uses if not isinstance(use[1], SymbolicDim)]
        self._sizes = sizes if symbolic else None
        if sizes is not None and symbolic:
            self._base = sizes.new()
            self._sized = [(word, sizes.place(word, size, self._base)) for word, size in symbolic]

    @property
    def is_used(self) -> bool:
        """Whether any word of the schedule depends on the address."""
        return bool(self._uses) or self._sizes is not None

    def move(self, address: int) -> None:
        """Set the address, and write it to the words unless it is the same."""
        if self.address == address:
            return
        self.address = address
        for position, offset in self._uses:
            self._words[position] = address + offset
        if self._sizes is not None:
            slots = self._sizes.slots
            slots[self._base] = address
            for position, slot in self._sized:
                self._words[position] = address + slots[slot]


class BoundArrays:
    """The array that each input was bound to last, without keeping it alive.

    Comparing identities is faster than asking weak references, which takes longer than small
    kernels. The identity of an array that dies is forgotten before another array can have it.
    """

    def __init__(self, count: int) -> None:
        self._identities = [0] * count
        self._watching: list[weakref.ref[np.ndarray] | None] = [None] * count

    def others(self, identities: Sequence[int]) -> list[int]:
        """Return the inputs whose `id` differs from the one remembered, or that have none."""
        return list(compress(range(len(identities)), map(ne, identities, self._identities)))

    def remember(self, index: int, array: np.ndarray) -> None:
        """Note that an input is bound to `array`."""
        identities = self._identities  # what a reference calls must not keep its holder alive
        self._watching[index] = weakref.ref(array, lambda _: identities.__setitem__(index, 0))
        identities[index] = id(array)

    def forget(self, index: int) -> None:
        """Note that an input is bound to a private copy, which no caller can pass again."""
        self._watching[index] = None
        self._identities[index] = 0
