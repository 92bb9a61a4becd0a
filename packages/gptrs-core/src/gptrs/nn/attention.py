"""Multi-head self-attention over a whole sequence or with a key/value cache."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.nn.cache_position import CachePosition
from gptrs.nn.kv_cache import LayerCache


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * D] -> [B, heads, T, D]."""
    batch, length, width = x.shape
    return F.transpose(F.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """[B, heads, T, D] -> [B, T, heads * D]."""
    batch, heads, length, head_dim = x.shape
    return F.reshape(F.transpose(x, (0, 2, 1, 3)), (batch, length, heads * head_dim))


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache | None,
    position: CachePosition,
    scale: float | None,
    window: int | None = None,
) -> tuple[Tensor, LayerCache | None]:
    """Causal attention of new positions to themselves and the cached ones.

    query [B, H, T, D], key and value [B, K, T, D], where H is a multiple of K. Without a cache the
    new positions are the whole sequence, and `position.offset` is 0. `window` is that of the
    `CacheLayer`: each position sees the last `window` ones up to its own, and the buffers are a
    ring. A text sees nothing of the padding at its left; padding sees itself. Returns [B, H, T, D]
    and the cache with the new keys and values, None without one.
    """
    if cache is None:
        return _attention(query, key, value, position, scale, window, cached=False), None
    at = position.offset
    if _may_wrap(cache, window):
        at = F.remainder(at, cache[0].shape[2])
    keys, values = F.update_cache(cache[0], key, at), F.update_cache(cache[1], value, at)
    return _attention(query, keys, values, position, scale, window, cached=True), (keys, values)


def _may_wrap(cache: LayerCache, window: int | None) -> bool:
    """Whether the buffers can be a ring that is complete: such a one is larger than its window."""
    return window is not None and window < cache[0].shape[2]


def _attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    position: CachePosition,
    scale: float | None,
    window: int | None,
    cached: bool,
) -> Tensor:
    """Attention with as little of a mask as there needs to be."""
    count, slots = query.shape[2], keys.shape[2]
    near = None if window is None or window >= slots else window
    if position.left_padding is None and (near is None or not cached):
        offset = position.offset if cached else None
        return F.attention(
            query, keys, values, scale=scale, causal=True, window=near, offset=offset
        )
    indices = _ring_indices(position, count, slots) if cached and near else F.arange(slots)
    mask = _visible(position, count, indices, near)
    return F.attention(query, keys, values, mask=mask, scale=scale)


def _ring_indices(position: CachePosition, count: int, slots: int) -> Tensor:
    """The index of the key in each slot after `count` new ones, si64 [S]; below 0 for none yet.

    It is the last index up to the newest one that is congruent to the slot.
    """
    newest = F.add(position.offset, count - 1)
    return F.sub(newest, F.remainder(F.sub(newest, F.arange(slots)), slots))


def _visible(position: CachePosition, count: int, keys: Tensor, window: int | None) -> Tensor:
    """Which keys, at these indices [S], the new queries see: i1 [T, S], or [B, 1, T, S]."""
    queries = F.reshape(F.add(F.arange(count), position.offset), (count, 1))
    seen = F.less_equal(keys, queries)  # (T, S)
    if window is not None:
        seen = F.logical_and(seen, F.greater(keys, F.sub(queries, window)))
    if position.left_padding is None:
        return F.logical_and(seen, F.greater_equal(keys, 0))
    first = F.reshape(position.left_padding, (position.left_padding.shape[0], 1, 1, 1))
    real = F.greater_equal(F.reshape(keys, (1, 1, 1, keys.shape[0])), first)
    return F.logical_or(F.logical_and(seen, real), F.equal(keys, queries))
