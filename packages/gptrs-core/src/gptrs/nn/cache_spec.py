"""Specs of layer caches, and groups of layers that keep the same positions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gptrs.errors import UsageError


class CacheSpec(Struct, frozen=True):
    """Keys and values of `n_kv_heads` heads, vectors of size `head_dim`.

    With `window` each position reads only the last `window` positions including itself, so pages of
    older ones are freed. With `per_page` there is one f32 vector per page, the state after the last
    position in it; `state_cache` and `convolution_cache` make such specs for `LayerCache`'s
    `recurrent` and `recent`. With `exact`, keys encode positions, for which 8-bit codes are too
    coarse: they use bf16. UsageError for sizes below 1.
    """

    n_kv_heads: int
    head_dim: int
    window: int | None = None
    per_page: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("n_kv_heads", "head_dim", "window"):
            size: int | None = getattr(self, name)
            if size is not None and size < 1:
                raise UsageError(f"the cache of a layer needs `{name}` of at least 1, got {size}")


def convolution_cache(width: int, count: int) -> CacheSpec:
    """Return the spec of a convolution layer that sees the last `count` states [C] of a text, C
    even.

    UsageError for another C.
    """
    if width % 2:
        raise UsageError(f"states that are kept for a convolution must be even, got {width}")
    return CacheSpec(1, width // 2, count)


def state_cache(size: int, window: int = 2) -> CacheSpec:
    """Return the spec of a layer with a state of `size` numbers per text; `size` is even.

    `window`, at least 2, may equal that of other layers, to share their page tables. UsageError for
    other numbers.
    """
    if size % 2 or window < 2:
        raise UsageError(
            f"states need an even size and a window of at least 2, got {size} and {window}"
        )
    return CacheSpec(1, size // 2, window, per_page=True)


class CacheGroup(Struct, frozen=True):
    """Layers that see the same positions and so share page ids and a page table.

    `whole`: a layer has one state a page, valid only after its last position.
    """

    window: int | None
    layers: tuple[int, ...]
    whole: bool = False


def cache_groups(specs: Sequence[CacheSpec]) -> tuple[CacheGroup, ...]:
    """Return the groups of layers with the same window, in the order of their first layers."""
    layers: dict[int | None, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers.setdefault(spec.window, []).append(layer)
    return tuple(
        CacheGroup(window, tuple(found), any(specs[layer].per_page for layer in found))
        for window, found in layers.items()
    )
