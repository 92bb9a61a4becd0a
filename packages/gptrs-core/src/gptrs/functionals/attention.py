"""Scaled dot-product attention and the key/value cache it reads."""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.activation import softmax
from gptrs.functionals.operands import (
    expand,
    require_integer,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.functionals.registry import functional
from gptrs.ir import dtypes


@functional
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """`softmax(scale * Q K^T, where mask) V` (Vaswani et al. 2017).

    query [B, H, T, D], key [B, H, S, D], value [B, H, S, E] -> [B, H, T, E], of one float type.
    `mask` is i1, broadcast to [B, H, T, S]: false hides a key from a query. `scale` is 1/sqrt(D)
    unless given. A query that sees no key gives NaN.
    """
    if not query.dtype.is_float or query.dtype.bits < 16:
        raise UsageError(f"`attention` needs f16, bf16, f32 or f64, got `{query.type}`")
    require_same_dtype("attention", query, key, value)
    if not query.rank == key.rank == value.rank == 4:
        raise UsageError("`attention` needs query, key and value of rank 4 [B, H, T, D]")
    batch, heads, _, depth = query.shape
    require_shape("attention", "key", key, (batch, heads, key.shape[2], depth))
    require_shape("attention", "value", value, (batch, heads, key.shape[2], value.shape[3]))
    factor = 1 / math.sqrt(depth) if scale is None else scale
    scores = primitives.dot_general(query, key, ([3], [3]), ([0, 1], [0, 1]))  # (B, H, T, S)
    scores = primitives.mul(scores, splat(factor, scores.dtype, scores.shape))
    if mask is not None:
        if mask.dtype is not dtypes.i1:
            raise UsageError(f"`attention` needs an i1 mask, got `{mask.type}`")
        hidden = splat(-math.inf, scores.dtype, scores.shape)
        scores = primitives.select(expand(mask, scores.shape), scores, hidden)
    weights = softmax(scores, axis=-1)
    return primitives.dot_general(weights, value, ([3], [2]), ([0, 1], [0, 1]))  # (B, H, T, E)


@functional
def causal_mask(queries: int, keys: int, offset: Tensor | int = 0) -> Tensor:
    """i1 [queries, keys]: query i, at position `offset + i`, sees the keys 0 .. offset + i.

    `offset` is a number or a rank-0 si64 tensor, so that one compiled step serves all positions.
    """
    shape = (queries, keys)
    if isinstance(offset, int):
        offset = splat(offset, dtypes.si64)
    require_integer("causal_mask", offset=offset)
    require_shape("causal_mask", "offset", offset, ())
    column = primitives.iota(shape, 1, dtypes.si64)
    row = primitives.iota(shape, 0, dtypes.si64)
    last = primitives.add(row, expand(primitives.cast(offset, dtypes.si64), shape))
    return primitives.compare(column, last, "le")


@functional
def update_cache(cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """`cache` [B, H, S, D] with `new` [B, H, T, D] written at `position` of axis 2.

    `position` is a rank-0 si64 tensor; the caller keeps position + T <= S, since the op clamps.
    Backends write in place where the cache is donated and not read afterwards.
    """
    require_same_dtype("update_cache", cache, new)
    require_integer("update_cache", position=position)
    require_shape("update_cache", "position", position, ())
    if cache.rank != 4 or new.rank != 4:
        raise UsageError("`update_cache` needs a cache and new entries of rank 4 [B, H, S, D]")
    zero = splat(0, dtypes.si64, (1,))
    place = primitives.reshape(primitives.cast(position, dtypes.si64), (1,))
    starts = primitives.concat([zero, zero, place, zero], 0)
    return primitives.dynamic_update_slice(cache, new, starts)
