"""Attention as ONNX Runtime's optimizers and builders of language models write it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gptrs.api.importers import is_number, scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Node, Sizes, as_tensor, constant, converts, sizes
from gptrs_onnx.ops.quantized_layers import matmul_integer_to_float


class _Heads(NamedTuple):
    """Queries [B, N, S, H], keys [B, K, L, H] and values [B, K, L, V] of attention."""

    query: Tensor
    key: Tensor
    value: Tensor


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return [B, S, N * H] as [B, N, S, H]."""
    batch, length, width = x.shape
    return F.swap_axes(F.reshape(x, [batch, length, heads, width // heads]), 1, 2)


def _joined_heads(x: Tensor) -> Tensor:
    """Return [B, N, S, H] as [B, S, N * H]."""
    batch, heads, length, width = x.shape
    return F.reshape(F.swap_axes(x, 1, 2), [batch, length, heads * width])


def _mask(node: Node, mask: Tensor, parts: _Heads) -> Tensor:
    """Return what a mask of keys adds to the scores, [B or 1, 1, S or 1, L].

    A mask of rank 1 has the ends [B] of the keys of each row, or ends and starts [2 * B]; others
    have positive numbers where a key counts. What they hide keeps a share: the number that is added
    to it, -10000 by default, is finite.
    """
    batch, length = parts.query.shape[0], parts.key.shape[2]
    if mask.rank == 1:
        places = F.reshape(F.arange(length), [1, -1])
        if mask.shape[0] == batch:
            seen = places < F.expand_dims(F.cast(mask, dtypes.si64), 1)
        elif mask.shape[0] == 2 * batch:
            ends, starts = (
                F.expand_dims(each, 1) for each in F.split(F.cast(mask, dtypes.si64), 2)
            )
            seen = F.logical_and(places < ends, places >= starts)
        else:
            node.refuse(f"has a mask `{mask.type}` for {batch} rows; [B] and [2 * B] are supported")
        seen = F.reshape(seen, [batch, 1, 1, length])
    elif mask.rank == 2:
        seen = F.reshape(mask > 0, [mask.shape[0], 1, 1, mask.shape[1]])
    elif mask.rank == 3:
        seen = F.expand_dims(mask > 0, 1)
    else:
        node.refuse(f"has a mask `{mask.type}`; only masks of rank 1 to 3 are supported")
    dtype = parts.query.dtype
    hidden = scalar(node.number("mask_filter_value", -10000.0), dtype)
    # Finite, as in ONNX Runtime: a row in which every key is hidden gets the mean of all values,
    # not NaN.
    return F.where(seen, scalar(0, dtype), hidden)


def _attended(
    node: Node, parts: _Heads, mask: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """Return the results [B, S, N * V] of attention; `unidirectional` is causal."""
    added = None if mask is None else _mask(node, mask, parts)
    if bias is not None:
        added = bias if added is None else added + bias
    is_causal = node.flag("unidirectional")
    found = F.attention(*parts, added, scale or None, causal=is_causal)
    return _joined_heads(found)


def _refuse_shared(node: Node) -> None:
    """Refuse what only GPUs do: rotated positions, and one tensor for past and present."""
    for name in ("past_present_share_buffer", "do_rotary"):
        if node.flag(name):
            node.refuse(f"has the attribute `{name}`, which is not supported")


@converts("com.microsoft.Attention")
def attention(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_length: Tensor | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: list[int] | None = None,
    scale: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return self-attention of x [B, S, I] projected by one weight [I, Q + K + V].

    Then, where asked for, keys and values with those of the `past` [2, B, N, L, H].
    """
    del past_length
    _refuse_shared(node)
    projected = F.linear(x, weight, bias, "in_out")
    return _self_attention(
        node, projected, mask, past, attention_bias, num_heads, qkv_hidden_sizes, scale
    )


def _self_attention(
    node: Node,
    projected: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    attention_bias: Tensor | None,
    heads: int,
    widths: list[int] | None,
    scale: float,
) -> tuple[Tensor, ...]:
    split = F.split(projected, widths or 3, -1)
    query, key, value = (_split_heads(each, heads) for each in split)
    if past is not None:
        before = [F.squeeze(each, 0) for each in F.split(past, 2, 0)]
        key, value = F.concat([before[0], key], 2), F.concat([before[1], value], 2)
    found = _attended(node, _Heads(query, key, value), mask, attention_bias, scale)
    return (found, F.stack([key, value], 0)) if node.wants(1) else (found,)


@converts("com.microsoft.QAttention")
def quantized_attention(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    mask: Tensor | None = None,
    x_zero: Tensor | None = None,
    weight_zero: Tensor | None = None,
    past: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return what `Attention` does for a quantized x and weight."""
    _refuse_shared(node)
    zeros = (x_zero, weight_zero)
    projected = matmul_integer_to_float(x, weight, x_scale, weight_scale, *zeros, bias)
    return _self_attention(node, projected, mask, past, None, num_heads, None, scale)


@converts("com.microsoft.MultiHeadAttention")
def multi_head_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Tensor | None = None,
    beams: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return attention of a query [B, S, Q] over keys [B, L, K] and values [B, L, V].

    Keys and values may be split into heads [B, N, L, H], as a decoder gets them of its encoder, or
    all in one tensor [B, L, N, 3, H] or [B, L, N, 2, H]. Then, where asked for, keys and values
    with those of the past.
    """
    if past_length is not None or beams is not None or node.wants(3):
        node.refuse("shares the buffers of past and present, or returns its scores")
    parts = _parts(node, query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        joined = [F.concat(pair, 2) for pair in ((past_key, parts.key), (past_value, parts.value))]
        parts = _Heads(parts.query, *joined)
    found = _attended(node, parts, mask, attention_bias, scale)
    return found, parts.key, parts.value


def _parts(
    node: Node,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    heads: int,
) -> _Heads:
    """Return query, key and value with a bias each, split into heads."""
    if query.rank == 5 and key is None:
        batch, length, _, _, width = query.shape
        split = [F.reshape(each, [batch, length, heads * width]) for each in F.split(query, 3, 3)]
    elif key is not None and key.rank == 5:
        batch, length, _, _, width = key.shape
        packed = [F.reshape(each, [batch, length, heads * width]) for each in F.split(key, 2, 3)]
        split = [query, *packed]
    elif key is not None and value is not None and key.rank == value.rank == 4:
        # Keys and values that are split already have their biases.
        own = query if bias is None else query + F.slice_axis(bias, 0, 0, query.shape[2])
        return _Heads(_split_heads(own, heads), key, value)
    elif key is None or value is None:
        node.malformed("lacks keys or values")
    else:
        split = [query, key, value]
    if bias is not None:
        biases = F.split(bias, [each.shape[2] for each in split], 0)
        split = [each + own for each, own in zip(split, biases, strict=True)]
    return _Heads(*(_split_heads(each, heads) for each in split))


@converts("com.microsoft.DecoderMaskedMultiHeadAttention")
def decoder_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Tensor | None = None,
    beam_width: Tensor | None = None,
    beams: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    past_present_share_buffer: bool = False,
) -> tuple[Tensor, ...]:
    """Return attention of one new position over a past, or over the keys of an encoder.

    With one buffer [B, N, M, H] for past and present, the new keys are written at `past_length`;
    `beams` [rows, beams, M] says from which beam of a row each earlier position comes.
    """
    del beam_width  # `beams` has that size
    if node.wants(3) or node.integer("output_qk", 0):
        node.refuse("returns its scores, which is not supported")
    parts = _parts(node, query, key, value, bias, num_heads)
    if past_key is None or past_value is None:
        return (_attended(node, parts, mask, attention_bias, scale),)
    if not past_present_share_buffer or past_length is None:
        joined = [F.concat(pair, 2) for pair in ((past_key, parts.key), (past_value, parts.value))]
        parts = _Heads(parts.query, *joined)
        return _attended(node, parts, mask, attention_bias, scale), parts.key, parts.value
    room = past_key.shape[2]
    places = F.arange(room)
    last = F.cast(F.reshape(past_length, []), dtypes.si64)
    is_new = F.reshape(F.equal(places, last), [1, 1, room, 1])
    present = [
        F.where(is_new, new, past)
        for new, past in ((parts.key, past_key), (parts.value, past_value))
    ]
    read = present
    if beams is not None:
        rows = _rows_of_beams(beams, past_key)
        read = [F.where(is_new, each, F.gather(each, rows, 0)) for each in present]
    seen = F.reshape(places <= last, [1, 1, 1, room])
    # Beyond the last position a buffer holds anything, and NaN * 0 is NaN.
    read = [F.where(F.reshape(seen, [1, 1, room, 1]), each, 0.0) for each in read]
    parts = _Heads(parts.query, *read)
    added = F.where(seen, scalar(0, query.dtype), scalar(-math.inf, query.dtype))
    for each in (None if mask is None else _mask(node, _padded(mask, room), parts), attention_bias):
        if each is not None:
            added = added + _padded(each, room)
    found = F.attention(*parts, added, scale or None)
    return (_joined_heads(found), *present)


def _rows_of_beams(beams: Tensor, past: Tensor) -> Tensor:
    """Return the row of a cache [B, N, M, H] that each position is read from, in its shape."""
    rows, width, _ = beams.shape
    first = F.reshape(F.arange(rows) * width, [-1, 1, 1])
    found = F.reshape(F.cast(beams, dtypes.si64) + first, [rows * width, 1, -1, 1])
    return F.broadcast_to(found, past.shape)


def _padded(x: Tensor, room: int) -> Tensor:
    """Return x with zeros at the end of its last axis, up to `room` elements."""
    lacking = room - x.shape[-1]
    if is_number(lacking, 0):
        return x
    return F.pad(x, [*[(0, 0)] * (x.rank - 1), (0, lacking)])


# Positions of queries and keys relative to each other, and rotary ones.


@converts("com.microsoft.RelativePositionBias")
def relative_position_bias(
    table: Tensor,
    queries: Sizes,
    keys: Sizes,
    *,
    max_distance: int,
    is_bidirectional: bool = False,
) -> Tensor:
    """Return a bias [1, N, queries, keys] of a table [buckets, N] by distance (T5).

    Half of the buckets have a distance each, the others grow with its logarithm up to
    `max_distance`.
    """
    count = table.shape[0]
    behind = F.expand_dims(F.arange(queries[0]), 1) - F.arange(keys[0])
    if is_bidirectional:
        count //= 2
    first = F.cast(behind < 0, dtypes.si64) * (count if is_bidirectional else 0)
    behind = F.abs(behind) if is_bidirectional else F.maximum(behind, 0)
    exact = count // 2
    share = F.log(F.cast(F.maximum(behind, 1), dtypes.f32) / exact) / math.log(max_distance / exact)
    far = F.minimum(exact + F.cast(F.trunc(share * float(count - exact)), dtypes.si64), count - 1)
    found = F.embedding(first + F.where(behind < exact, behind, far), table)
    return F.expand_dims(F.transpose(found, [2, 0, 1]), 0)


@converts("com.microsoft.RotaryEmbedding")
def rotary_embedding(
    node: Node,
    x: Tensor,
    positions: Tensor,
    cosines: Tensor,
    sines: Tensor,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: bool = False,
) -> Tensor:
    """Return x [B, S, N * H] or [B, N, S, H] with pairs of components rotated by position.

    The positions are those of all rows [B, S], or the first one [1].
    """
    if scale != 1.0 or is_packed_batching:
        node.refuse("has a scale, or rows packed into one")
    heads = _turned_heads(x, num_heads, rotary_embedding_dim, cosines.shape[1])
    if positions.rank == 1:
        positions = F.expand_dims(F.cast(positions, dtypes.si64) + F.arange(heads.shape[2]), 0)
    turned = rotated(heads, positions, cosines, sines, interleaved)
    return _joined_heads(turned) if x.rank == 3 else turned


@converts("com.microsoft.MRotaryEmbedding")
def several_rotary_embeddings(
    node: Node,
    x: Tensor,
    positions: Tensor,
    cosines: Tensor,
    sines: Tensor,
    *,
    mrope_section: list[int],
    mrope_layout: int = 0,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: bool = False,
) -> Tensor:
    """Return `rotary_embedding` with three positions [3, B, S], each for its share of the angles.

    The shares are sections one after the other, or in turns (`mrope_layout` 1) as in Qwen3-VL.
    """
    half = cosines.shape[1]
    if scale != 1.0 or is_packed_batching or mrope_layout not in (0, 1):
        node.refuse("has a scale, rows packed into one, or another layout than 0 and 1")
    if len(mrope_section) != 3 or sum(mrope_section) != half or min(mrope_section) < 0:
        node.malformed(f"has the sections {mrope_section} of {half} angles")
    owner = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        owner = np.zeros(half, np.int64)
        for axis in (1, 2):
            owner[axis : 3 * mrope_section[axis] : 3] = axis
    heads = _turned_heads(x, num_heads, rotary_embedding_dim, half)
    angles: list[Tensor] = []
    for table in (cosines, sines):
        each = F.split(F.embedding(positions, table), 3, 0)
        first, *others = (F.squeeze(one, 0) for one in each)
        for axis, other in enumerate(others, 1):
            first = F.where(constant(owner == axis), other, first)
        angles.append(first)
    turned = _turned(heads, angles[0], angles[1], interleaved)
    return _joined_heads(turned) if x.rank == 3 else turned


def _turned_heads(x: Tensor, num_heads: int, rotated_width: int, half: int) -> Tensor:
    """Return x [B, S, N * H] or [B, N, S, H] as the latter; all of H turns if no width is given."""
    if x.rank != 3:
        return x
    width = x.shape[2] // num_heads if rotated_width else 2 * half
    return _split_heads(x, x.shape[2] // width)


def rotated(
    x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool
) -> Tensor:
    """Return x [B, N, S, H] rotated by the angles of positions [B or 1, S]; the rest of H stays."""
    cos, sin = (F.embedding(positions, each) for each in (cosines, sines))
    return _turned(x, cos, sin, interleaved)


def _turned(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """Return x [B, N, S, H] rotated by angles [B or 1, S, up to H / 2]; the rest of H stays."""
    half, width = cosines.shape[2], x.shape[3]
    cos, sin = F.expand_dims(cosines, 1), F.expand_dims(sines, 1)
    turning = F.slice_axis(x, 3, 0, 2 * half)
    if interleaved:
        pairs = F.reshape(turning, [*x.shape[:3], half, 2])
        first, second = (F.squeeze(each, 4) for each in F.split(pairs, 2, 4))
    else:
        first, second = F.split(turning, 2, 3)
    real, imaginary = first * cos - second * sin, second * cos + first * sin
    if interleaved:
        made = F.reshape(F.stack([real, imaginary], 4), [*x.shape[:3], 2 * half])
    else:
        made = F.concat([real, imaginary], 3)
    if width == 2 * half:
        return made
    return F.concat([made, F.slice_axis(x, 3, 2 * half, width - 2 * half)], 3)


# Attention of decoders over a cache, whose rows may have different lengths.


@converts("com.microsoft.GroupQueryAttention")
def group_query_attention(
    node: Node,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    last: Tensor,
    total: Sizes,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    positions: Tensor | None = None,
    attention_bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *more: Tensor | None,
    num_heads: int,
    kv_num_heads: int,
    rotary_interleaved: bool = False,
) -> tuple[Tensor, ...]:
    """Return attention [B, S, N * H] of new positions over a cache; and the cache with them.

    Row b has `last[b] + 1` positions, the last S are new: keys and values [B, S, K * H] are
    written after those of the past [B, K, L, H], and what is beyond is 0. `total` is the number of
    positions of the longest row.
    """
    refuse_settings(node, more)
    parts = grouped_heads(node, query, key, value, num_heads, kv_num_heads)
    parts = with_normed_heads(node, parts, more)
    steps, (longest,) = parts.query.shape[2], total
    ends = F.cast(F.reshape(last, [-1]), dtypes.si64) + 1
    # A prompt may be padded: its rows end at different positions, but all begin at 0.
    before = F.zeros(ends.shape, dtypes.si64) if steps == longest else ends - _size(steps)
    places = F.expand_dims(before, 1) + F.arange(steps)  # [B, S], in the cache
    if node.flag("do_rotary"):
        angles = _angles(places, positions, longest)
        parts = _turned_parts(node, parts, angles, cosines, sines, rotary_interleaved)
    room = longest if past_key is None else max(longest, past_key.shape[2])
    caches = (
        _written(past_key, parts.key, before, places, room),
        _written(past_value, parts.value, before, places, room),
    )
    parts = _Heads(parts.query, *(_first(each, longest) for each in caches))
    seen = _seen(node, places, ends, longest)
    return (_joined_heads(_over_cache(node, parts, seen, attention_bias, sinks)), *caches)


def _over_cache(
    node: Node, parts: _Heads, seen: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """Return attention [B, N, S, H] over the keys that are seen, by the settings of a node."""
    query, keys, values = parts
    scale = node.number("scale", 0.0) or 1 / math.sqrt(query.shape[3])
    softcap = node.number("softcap", 0.0) or None
    smooth = node.integer("smooth_softmax", -1) == 1
    # A mask of i1, for which backends have kernels, rather than numbers to add.
    if sinks is None and bias is None and not smooth:
        return F.attention(query, keys, values, seen, scale, softcap=softcap)
    added = _added(seen, bias, query.dtype)
    if smooth or sinks is not None:
        keys, values, added = _with_sink(keys, values, added, sinks, query.shape[1])
    return F.attention(query, keys, values, added, scale, softcap=softcap)


def _angles(places: Tensor, positions: Tensor | None, longest: int) -> Tensor:
    """Return the positions [B, S] by which queries and keys rotate: given, or of the cache."""
    if positions is None:
        return places
    steps = places.shape[1]
    given = F.cast(positions, dtypes.si64)
    if steps != longest:
        return given
    # A prompt counts on from its first position, as the description of the operator says.
    return F.slice(given, [0, 0], [1, 1]) + F.expand_dims(F.arange(steps), 0)


def _turned_parts(
    node: Node,
    parts: _Heads,
    angles: Tensor,
    cosines: Tensor | None,
    sines: Tensor | None,
    interleaved: bool,
) -> _Heads:
    if cosines is None or sines is None:
        node.malformed("rotates by positions without cosines and sines")
    query, key = (
        rotated(each, angles, cosines, sines, interleaved) for each in (parts.query, parts.key)
    )
    return _Heads(query, key, parts.value)


def refuse_settings(node: Node, more: tuple[Tensor | None, ...]) -> None:
    """Raise UnsupportedError for inputs and attributes of attention that are not converted."""
    names = ("k_scale", "v_scale", "", "", "query_seqlens")
    given = [name for name, each in zip(names, more, strict=False) if name and each is not None]
    if given:
        node.refuse(f"has the input `{given[0]}`, which is not supported")
    for name in ("sliding_window_cache", "qk_output"):
        if node.integer(name, 0):
            node.refuse(f"has the attribute `{name}`, which is not supported")


def grouped_heads(
    node: Node, query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, groups: int
) -> _Heads:
    """Return query, key and value split into heads, from one tensor if they are packed."""
    if key is not None and value is not None:
        split = (query, key, value)
    elif key is None and value is None:
        width = query.shape[2] // (heads + 2 * groups)
        split = F.split(query, [heads * width, groups * width, groups * width], 2)
    else:
        node.malformed("has keys without values, or values without keys")
    return _Heads(
        *(_split_heads(x, n) for x, n in zip(split, (heads, groups, groups), strict=True))
    )


def with_normed_heads(node: Node, parts: _Heads, more: Sequence[Tensor | None]) -> _Heads:
    """Return parts whose query and key are normalized by head, before they are rotated.

    `more` are the inputs of `GroupQueryAttention` after the sinks: two of them are the weights [H].
    """
    query_weight, key_weight = (*more, *[None] * 4)[2:4]
    if query_weight is None and key_weight is None:
        return parts
    if query_weight is None or key_weight is None:
        node.malformed("has one of `q_norm_weight` and `k_norm_weight`, and needs both")
    both = node.number("qk_norm_epsilon", 1e-6)
    query = F.rms_norm(parts.query, query_weight, node.number("q_norm_epsilon", both))
    key = F.rms_norm(parts.key, key_weight, node.number("k_norm_epsilon", both))
    return _Heads(query, key, parts.value)


def _size(size: int) -> Tensor | int:
    """Return a size as an operand for tensors: a symbol becomes a tensor."""
    return size if is_number(size) else as_tensor(sizes([size]).reshape(()))


def _written(past: Tensor | None, new: Tensor, before: Tensor, places: Tensor, room: int) -> Tensor:
    """Return a cache [B, K, room, H]: `before[b]` positions of the past, new ones, and zeros."""
    batch, heads, steps, width = new.shape
    if past is None:
        if room == steps:
            return new
        base = F.zeros([batch, heads, room, width], new.dtype)
    else:
        extra = room - past.shape[2]
        base = (
            past
            if is_number(extra, 0)
            else F.concat([past, F.zeros([batch, heads, extra, width], past.dtype)], 2)
        )
        inside = F.reshape(F.arange(room), [1, 1, -1, 1]) < F.reshape(before, [-1, 1, 1, 1])
        # Buffers of GPUs hold anything beyond the past; what is read there must be 0, as NaN * 0 is
        # NaN.
        base = F.where(inside, base, F.zeros([], base.dtype))
    index = F.broadcast_to(F.reshape(places, [batch, 1, steps, 1]), new.shape)
    return F.scatter(base, index, new, 2)


def _seen(node: Node, places: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Return which keys a query sees [B, 1, S, total]."""
    keys = F.reshape(F.arange(longest), [1, 1, 1, -1])
    here = F.expand_dims(F.expand_dims(places, 1), 3)  # (B, 1, S, 1)
    is_causal = node.flag("causal", True)
    seen = keys <= here if is_causal else keys < F.reshape(ends, [-1, 1, 1, 1])
    window = node.integer("local_window_size", -1)
    return seen if window < 0 else F.logical_and(seen, keys > here - window)


def _added(seen: Tensor, bias: Tensor | None, dtype: DType) -> Tensor:
    """Return the summand of the scores: -inf for hidden keys, a bias for others."""
    shown = scalar(0, dtype) if bias is None else bias
    return F.where(seen, shown, scalar(-math.inf, dtype))


def _first(cache: Tensor, length: int) -> Tensor:
    """Return the first positions of a cache, at most all of it."""
    return cache if cache.shape[2] == length else F.slice_axis(cache, 2, 0, length)


def _with_sink(
    key: Tensor, value: Tensor, added: Tensor, sinks: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and the summand of the scores, with one more key whose value is 0.

    Its score is the sink of each head, or 0: its share is what the others lack to 1.
    """
    batch, _, steps, length = added.shape
    shape = [batch, heads, steps, 1]
    if sinks is None:
        sink = F.zeros(shape, added.dtype)
    else:
        sink = F.broadcast_to(F.reshape(F.cast(sinks, added.dtype), [1, heads, 1, 1]), shape)
    wide = F.broadcast_to(added, [batch, heads, steps, length])
    return _with_zero(key), _with_zero(value), F.concat([wide, sink], 3)


def _with_zero(cache: Tensor) -> Tensor:
    """Return a cache with one more position, of zeros."""
    return F.concat([cache, F.zeros([*cache.shape[:2], 1, cache.shape[3]], cache.dtype)], 2)
