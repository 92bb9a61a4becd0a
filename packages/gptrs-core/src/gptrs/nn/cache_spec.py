"""The content of one layer's cache: all positions, or those of a window in a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gptrs.errors import UsageError

PIECES: Final = (256, 128, 64, 32, 16)
"""Positions that a ring may take at once after it has wrapped; a ring is a multiple of its own."""

LARGEST_MARGIN: Final = 256
"""Slots that a ring may have beyond its window."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Keys and values of `n_kv_heads` heads, vectors of size `head_dim`.

    With `window` each position reads the last `window` ones up to itself, so older ones need not be
    kept: the buffers are a ring, in which position p lies in slot `p mod size`. A ring is a little
    larger than its window, because the positions of one step are written before the first of them
    reads. UsageError for sizes below 1.
    """

    n_kv_heads: int
    head_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_kv_heads", "head_dim", "window"):
            size: int | None = getattr(self, name)
            if size is not None and size < 1:
                raise UsageError(f"the cache of a layer needs `{name}` of at least 1, got {size}")

    def slots(self, limit: int) -> int:
        """Return the final size of the buffers, for at most `limit` positions."""
        if self.window is None:
            return limit
        return min(limit, _ring(self.window, self._piece(self.window)))

    def step_size(self, length: int, count: int, limit: int) -> int:
        """Return how many of `count` positions may follow `length` ones in one step.

        They take consecutive slots, and overwrite nothing that one of them reads.
        """
        size = self.slots(limit)
        if self.window is None or length + count <= size:
            return count
        if length < size:
            return size - length
        return min(count, self._piece(self.window), size - length % size)

    def holds(self, position: int, length: int, limit: int) -> bool:
        """Whether a cache of `length` positions has all that a query at `position` reads."""
        if self.window is None:
            return True
        first = max(0, position - self.window + 1)
        return first == position or first >= length - self.slots(limit)

    def _piece(self, window: int) -> int:
        """The largest piece that is no larger than the window and leaves the ring close to it."""
        fitting = (size for size in PIECES if size <= window)
        near = (size for size in fitting if _ring(window, size) <= window + LARGEST_MARGIN)
        return next(near, PIECES[-1])


def _ring(window: int, piece: int) -> int:
    """The first multiple of `piece` that holds a window and the other positions of a piece."""
    return -(-(window + piece - 1) // piece) * piece


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that see the same positions, so that they share page ids and a page table."""

    window: int | None
    layers: tuple[int, ...]


def cache_groups(specs: Sequence[CacheSpec]) -> tuple[CacheGroup, ...]:
    """Return the groups of layers with the same window, in the order of their first layers."""
    layers: dict[int | None, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers.setdefault(spec.window, []).append(layer)
    return tuple(CacheGroup(window, tuple(found)) for window, found in layers.items())
