"""Scaled dot-product attention and the key/value cache it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.activation import safe_softmax
from gptrs.functionals.dispatch.examples import pattern_examples
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import cast
from gptrs.functionals.operands import (
    expand,
    require_integer,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import broadcast_shapes, broadcastable_to

# Masks of attention: which keys a query sees, as i1 tensors that broadcast to the scores.


@functional
def causal_mask(queries: int, keys: int, offset: Tensor | int = 0) -> Tensor:
    """i1 [queries, keys]: query i, at position `offset + i`, sees the keys 0 .. offset + i.

    `offset` is a number or a rank-0 integer tensor, so that one compiled step serves all positions;
    a negative one leaves the first queries without a key. UsageError for sizes below 0 and another
    kind of offset.
    """
    _require_sizes("causal_mask", queries=queries, keys=keys)
    last = _positions("causal_mask", queries, keys, offset)
    return primitives.compare(_columns((queries, keys)), last, "le")


@functional
def sliding_window_mask(queries: int, keys: int, window: int, offset: Tensor | int = 0) -> Tensor:
    """i1 [queries, keys]: the query at position p sees the keys p - window + 1 .. p.

    These are the last `window` keys including its own (Beltagy et al. 2020; the causal form as in
    Mistral). Query i is at position `offset + i`, as in `causal_mask`. UsageError for a window
    below 1, sizes below 0 and another kind of offset.
    """
    name = "sliding_window_mask"
    _require_sizes(name, queries=queries, keys=keys)
    if window < 1:
        raise UsageError(f"`{name}` needs a window of at least 1 key, got {window}")
    last, column = _positions(name, queries, keys, offset), _columns((queries, keys))
    before = primitives.sub(last, splat(window, dtypes.si64, last.shape))
    not_after = primitives.compare(column, last, "le")
    return primitives.bit_and(not_after, primitives.compare(column, before, "gt"))


@functional
def padding_mask(lengths: Tensor, size: int, side: Literal["right", "left"] = "right") -> Tensor:
    """i1 [B, 1, 1, size]: sequence b of a batch has `lengths[b]` keys, the rest is padding.

    `lengths` is an integer tensor [B]. Padding follows the keys for side "right" and precedes them
    for "left", where all sequences end together. Pass it to `attention` as the mask, with
    `causal=True` if needed. UsageError for other lengths, a size below 0, or another side.
    """
    if side not in ("right", "left"):
        raise UsageError(f'`padding_mask` takes side="right" or "left", got {side!r}')
    _require_sizes("padding_mask", size=size)
    require_integer("padding_mask", lengths=lengths)
    if lengths.rank != 1:
        raise UsageError(f"`padding_mask` needs `lengths` of rank 1, got `{lengths.type}`")
    shape = (lengths.shape[0], 1, 1, size)
    count = primitives.reshape(primitives.cast(lengths, dtypes.si64), (*shape[:3], 1))
    if side == "right":
        return primitives.compare(_columns(shape), expand(count, shape), "lt")
    first = primitives.sub(splat(size, dtypes.si64, count.shape), count)
    return primitives.compare(_columns(shape), expand(first, shape), "ge")


def _require_sizes(name: str, **sizes: int) -> None:
    for label, size in sizes.items():
        if size < 0:
            raise UsageError(f"`{name}` needs `{label}` of at least 0, got {size}")


def _columns(shape: tuple[int, ...]) -> Tensor:
    """Return the index of the key at each position."""
    return primitives.iota(shape, -1, dtypes.si64)


def _positions(name: str, queries: int, keys: int, offset: Tensor | int) -> Tensor:
    """Return the position of the query for each of [queries, keys], in si64."""
    start = splat(offset, dtypes.si64) if isinstance(offset, int) else offset
    require_integer(name, offset=start)
    require_shape(name, "offset", start, ())
    shape = (queries, keys)
    row = primitives.iota(shape, 0, dtypes.si64)
    return primitives.add(row, expand(primitives.cast(start, dtypes.si64), shape))


_KEYS = {"key": "f32[2, 3, 6, 5]", "value": "f32[2, 3, 6, 7]"}


@pattern_examples(
    {"query": query, **_KEYS, **seen, "scale": scale}
    for query in ("f32[2, 3, 4, 5]", "f32[2, 6, 4, 5]")
    for seen in (
        {},
        {"mask": "i1[4, 6]"},
        {"causal": True},
        {"causal": True, "offset": "si64[]"},
    )
    for scale in (0.25, 0.75)
)
@functional(composite=True)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: Tensor | int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`softmax(cap(scale * Q K^T) + mask) V` (Vaswani et al. 2017).

    query [B, H, T, D], key [B, K, S, D], value [B, K, S, E] -> [B, H, T, E], all of one type: f16,
    bf16, f32 or f64. H is a multiple of K: query head h reads key head h // (H / K), which is
    multi-query (Shazeer 2019) and grouped-query attention (Ainslie et al. 2023); keys and values
    are not repeated. `scale` is 1/sqrt(D) unless given. `cap(x)` is x, or with `softcap` c `c *
    tanh(x / c)` (Gemma 2).

    A hidden key gets the probability 0, so its value must be finite. `mask` broadcasts to
    [B, H, T, S]: false in an i1 mask hides the key, a mask of the element type is added to the
    scores. With `causal` the query at position p sees no key after p, and with `window` only the
    last `window` keys up to its own. Query i is at position `offset + i`, where `offset`, a number
    or a rank-0 integer tensor, is the number of positions before these queries: in a decode
    step, the length of the cache. Without it the queries are the last T of the S positions:
    `offset` is S - T (torch's `is_causal` is `offset=0`).

    A query whose scores are all -inf, because masks or its position hide every key, gives 0
    (`safe_softmax`; as in torch since 2.5 and ONNX `Attention`), as does S = 0. A NaN among its
    scores gives NaN.

    16-bit operands are multiplied, scaled and normalized in f32, and the result is rounded once.
    UsageError for operands, masks and settings that do not fit.
    """
    return attention_by(
        safe_softmax, query, key, value, mask, scale, causal, window, offset, softcap
    )


def attention_by(
    normalize: Callable[[Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: Tensor | int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return `attention` whose probabilities are `normalize` of the scores [B, H, T, S]."""
    _require_operands(query, key, value)
    require_settings("attention", query.shape[3], scale, window, softcap)
    _require_position_settings(causal, window, offset)
    shape = (*query.shape[:3], key.shape[2])
    if mask is not None:
        _require_mask(mask, query.dtype, shape)
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    scores = _scores(query, key, factor, softcap)  # (B, H, T, S)
    if mask is not None and not mask.dtype.is_bool:
        scores = primitives.add(scores, expand(cast(mask, scores.dtype), shape))
    visible = mask if mask is not None and mask.dtype.is_bool else None
    if causal:
        ahead = shape[3] - shape[2] if offset is None else offset
        visible = _both(visible, _causal(shape[2], shape[3], window, ahead))
    if visible is not None:
        # A selection rather than the sum with -inf: a score of +inf or NaN behind the mask must
        # vanish, too.
        hidden = splat(-math.inf, scores.dtype, shape)
        scores = primitives.select(expand(visible, shape), scores, hidden)
    return _mix(normalize(scores), value, query.dtype)


@functional
def update_cache(cache: Tensor, new: Tensor, position: Tensor | int) -> Tensor:
    """`cache` [B, K, S, D] with `new` [B, K, T, D] written at `position` of axis 2.

    `position` is a number or a rank-0 integer tensor. With a tensor, the caller must ensure 0 <=
    position <= S - T, since the op clamps; a number out of range is refused. Read it with
    `attention(query, cache_k, cache_v, causal=True, offset=position)`, which hides everything after
    the new entries. Backends write in place if the cache is donated and not read afterwards.
    UsageError for tensors that do not fit.
    """
    _require_cache(cache, new)
    if isinstance(position, int):
        if not 0 <= position <= cache.shape[2] - new.shape[2]:
            raise UsageError(
                f"`update_cache` cannot write `{new.type}` at {position} of `{cache.type}`"
            )
        position = splat(position, dtypes.si64)
    require_integer("update_cache", position=position)
    require_shape("update_cache", "position", position, ())
    zero = splat(0, dtypes.si64, (1,))
    begin = primitives.reshape(primitives.cast(position, dtypes.si64), (1,))
    starts = primitives.concat([zero, zero, begin, zero], 0)
    return primitives.dynamic_update_slice(cache, new, starts)


def _scores(query: Tensor, key: Tensor, factor: float, softcap: float | None) -> Tensor:
    """Scaled and capped products of queries and keys, in at least f32: [B, H, T, S]."""
    batch, heads, length, _ = query.shape
    shape = (batch, heads, length, key.shape[2])
    # Scores of 16-bit operands stay in f32 up to the softmax: rounding them before would scale each
    # probability by the error of its exponent.
    wide = query.dtype.accumulator
    scores = _by_head(_grouped(query, key.shape[1]), key, 3, wide)  # (B, K, H / K * T, S)
    scores = _reshape(scores, shape)
    scores = primitives.mul(scores, splat(factor, wide, shape))
    if softcap is None:
        return scores
    cap = splat(softcap, wide, shape)
    return primitives.mul(primitives.tanh(primitives.div(scores, cap)), cap)


def _mix(probabilities: Tensor, value: Tensor, dtype: DType) -> Tensor:
    """Probabilities times values: [B, H, T, S], [B, K, S, E] -> [B, H, T, E] of `dtype`."""
    # The probabilities keep the accumulator type, so values are widened to them and only the result
    # is rounded.
    grouped = _grouped(probabilities, value.shape[1])
    mixed = _by_head(grouped, cast(value, probabilities.dtype), 2, dtype)  # (B, K, H / K * T, E)
    return _reshape(mixed, (*probabilities.shape[:3], value.shape[3]))


# Query heads are merged into rows rather than keys repeated: each key is then read once for its
# group.
def _grouped(x: Tensor, groups: int) -> Tensor:
    """[B, H, T, D] -> [B, K, H / K * T, D]: concatenates the query heads that share a key head."""
    batch, heads, length, head_dim = x.shape
    return _reshape(x, (batch, groups, heads // groups * length if groups else 0, head_dim))


def _by_head(lhs: Tensor, rhs: Tensor, contracted: int, dtype: DType) -> Tensor:
    """Contract the last axis of `lhs` in each head, accumulating in at least f32."""
    out = None if dtype is lhs.dtype else dtype
    heads = ([0, 1], [0, 1])
    return primitives.dot_general(lhs, rhs, ([3], [contracted]), heads, out_dtype=out)


def _causal(queries: int, keys: int, window: int | None, offset: Tensor | int) -> Tensor:
    if window is None:
        return causal_mask(queries, keys, offset)
    return sliding_window_mask(queries, keys, window, offset)


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    """Logical and of two masks over their broadcast shape."""
    if one is None:
        return other
    shape = broadcast_shapes([one.shape, other.shape], "`attention`")
    return primitives.bit_and(expand(one, shape), expand(other, shape))


def _reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else primitives.reshape(x, shape)


def _require_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dtype.is_float or query.dtype.bits < 16:
        raise UsageError(f"`attention` needs f16, bf16, f32 or f64, got `{query.type}`")
    require_same_dtype("attention", query, key, value)
    if not query.rank == key.rank == value.rank == 4:
        listed = ", ".join(f"`{x.type}`" for x in (query, key, value))
        raise UsageError(
            f"`attention` needs query, key and value of rank 4 [B, H, T, D], got {listed}"
        )
    batch, heads, _, head_dim = query.shape
    kv_heads, keys = key.shape[1:3]
    require_shape("attention", "key", key, (batch, kv_heads, keys, head_dim))
    require_shape("attention", "value", value, (batch, kv_heads, keys, value.shape[3]))
    if heads % kv_heads if kv_heads else heads:
        raise UsageError(
            f"`attention` needs the heads of the query to be a multiple of those of the key,"
            f" got {heads} and {kv_heads}"
        )


def require_settings(
    name: str, head_dim: int, scale: float | None, window: int | None, softcap: float | None
) -> None:
    """UsageError unless a kind of attention, functional `name`, takes these settings."""
    if scale is None and head_dim == 0:
        raise UsageError(f"`{name}` with head_dim 0 has no default scale", hint="give it a `scale`")
    if scale is not None and not math.isfinite(scale):
        raise UsageError(f"`{name}` needs a finite scale, got {scale}")
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise UsageError(f"`{name}` needs a finite softcap above 0, got {softcap}")
    if window is not None and window < 1:
        raise UsageError(f"`{name}` needs a window of at least 1 key, got {window}")


def _require_position_settings(
    causal: bool, window: int | None, offset: Tensor | int | None
) -> None:
    for label, given in (("window", window), ("offset", offset)):
        if given is not None and not causal:
            raise UsageError(f"`attention` takes `{label}` only with `causal=True`")
    if isinstance(offset, Tensor):
        require_integer("attention", offset=offset)
        require_shape("attention", "offset", offset, ())


def _require_mask(mask: Tensor, dtype: DType, shape: tuple[int, ...]) -> None:
    if not mask.dtype.is_bool and mask.dtype is not dtype:
        raise UsageError(f"`attention` of {dtype} needs an i1 or {dtype} mask, got `{mask.type}`")
    if not broadcastable_to(mask.shape, shape):
        raise UsageError(
            f"`attention` needs a mask that broadcasts to {list(shape)}, got `{mask.type}`"
        )


def _require_cache(cache: Tensor, new: Tensor) -> None:
    require_same_dtype("update_cache", cache, new)
    if cache.rank != 4 or new.rank != 4:
        raise UsageError(
            "`update_cache` needs a cache and new entries of rank 4 [B, K, S, D],"
            f" got `{cache.type}` and `{new.type}`"
        )
    batch, heads, size, head_dim = cache.shape
    require_shape("update_cache", "new", new, (batch, heads, new.shape[2], head_dim))
    if new.shape[2] > size:
        raise UsageError(f"`update_cache` cannot write `{new.type}` into `{cache.type}`")
