"""The key/value cache of a layer, and the layers that keep the same positions."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Keys and values of `n_kv_heads` heads, vectors of size `head_dim`.

    With `window` each position reads the last `window` ones up to itself, so pages of older ones
    are given back. UsageError for sizes below 1.
    """

    n_kv_heads: int
    head_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_kv_heads", "head_dim", "window"):
            size: int | None = getattr(self, name)
            if size is not None and size < 1:
                raise UsageError(f"the cache of a layer needs `{name}` of at least 1, got {size}")


def convolution_cache(width: int, count: int) -> CacheSpec:
    """Return what a layer keeps that sees the last `count` states [C] of a text, C even.

    UsageError for another C.
    """
    if width % 2:
        raise UsageError(f"states that are kept for a convolution must be even, got {width}")
    return CacheSpec(1, width // 2, count)


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
