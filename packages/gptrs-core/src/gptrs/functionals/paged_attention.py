"""Attention of several texts in one flat row of tokens, over a paged key/value cache. A pool holds
pages of S positions; a text owns any number of pages in any order (PagedAttention, Kwon et al.
2023). The tokens of all texts in a step are concatenated without padding.
"""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.region import Body
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.activation import finite_peak, positive_total, safe_softmax
from gptrs.functionals.attention import require_settings
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.normalization import (
    SCALE_BYTES,
    read_vectors,
    rounded_vectors,
    vector_bytes,
)
from gptrs.functionals.operands import (
    converted,
    expand,
    require_dtype,
    require_integer,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.symbolic_dim import exceeds
from gptrs.ir.tensor_type import TensorType

_FLOATS = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)
_MAX_ROWS = 2**31 - 1
"""Most rows of a pool seen as [P * K * S, D]: row numbers are si32."""


@functional(composite=True)
def update_pages(pool: Tensor, new: Tensor, slots: Tensor) -> Tensor:
    """`pool` [P, K, S, D] with row n of `new` [N, K, D] written at the position `slots[n]`.

    Slot s is position s % S of page s // S, for all K heads. `slots` are N integers; if several
    rows have one slot, the last wins. `new` is rounded to the element type of the pool: both are
    f16, bf16, f32 or f64. A pool of si8 is [P, K, S, D + 4] in the format of `rounded_vectors`.
    Backends write in place if the pool is donated and not read afterwards. A slot outside [0, P *
    S) raises ExecutionError when it runs. UsageError for tensors that do not fit.
    """
    _require_pools("update_pages", pool=pool)
    _require_floats("update_pages", 3, new=new)
    kv_heads, size, head_dim = pool.shape[1:]
    rows = new.shape[0]
    numbers = head_dim - vector_bytes(pool.type)
    require_shape("update_pages", "new", new, (rows, kv_heads, numbers))
    require_integer("update_pages", slots=slots)
    require_shape("update_pages", "slots", slots, (rows,))
    lines = pool.shape[0] * kv_heads * size
    if exceeds(lines, _MAX_ROWS):
        raise UsageError(f"`update_pages` takes pools of P * K * S < 2**31, got `{pool.type}`")
    by_head = (kv_heads, rows, head_dim)
    is_rounded = pool.dtype is dtypes.si8
    stored = rounded_vectors(new) if is_rounded else converted(new, pool.dtype)
    given = primitives.transpose(stored, (1, 0, 2))
    written = primitives.scatter_reduce(
        primitives.reshape(pool, (lines, head_dim)),
        primitives.reshape(
            expand(_lines(slots, kv_heads, size), by_head), (kv_heads * rows, head_dim)
        ),
        primitives.reshape(given, (kv_heads * rows, head_dim)),
        axis=0,
        kind="replace",
    )
    return primitives.reshape(written, pool.shape)


def _lines(slots: Tensor, kv_heads: int, size: int) -> Tensor:
    """Return the row of [P * K * S, D] for each head and slot: [K, N, 1]."""
    shape = (kv_heads, slots.shape[0])
    slot = converted(slots, dtypes.si32)
    page = primitives.div(slot, splat(size, slot.dtype, slot.shape))
    other_heads = splat((kv_heads - 1) * size, slot.dtype, slot.shape)
    first = primitives.add(slot, primitives.mul(page, other_heads))
    head = primitives.iota((kv_heads,), 0, slot.dtype)
    below = primitives.mul(head, splat(size, slot.dtype, head.shape))
    below = expand(primitives.reshape(below, (kv_heads, 1)), shape)
    return primitives.reshape(primitives.add(expand(first, shape), below), (*shape, 1))


@functional(composite=True)
def paged_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    page_table: Tensor,
    row_starts: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal `attention` of the tokens of B texts, each over its own pages.

    query [N, H, D], key_pool [P, K, S, D], value_pool [P, K, S, E] -> [N, H, E]. Integers:
    page_table [B, W], row_starts [B + 1], lengths [B]. H is a multiple of K: query head h reads key
    head h // (H / K).

    Text b owns the rows n in [row_starts[b], row_starts[b + 1]). They are its last tokens: row n is
    at position `lengths[b] - (row_starts[b + 1] - n)`. Position p of text b lies in page
    `page_table[b, p // S]` at p % S. A row sees the positions of its text up to its own, with
    `window` only the last `window` of them, and nothing below position 0. So the pools must already
    hold the keys and values of the new tokens: call `update_pages` first. Table entries after the
    last position may be any page. Positions that no row of a text sees may hold anything, even NaN.
    Rows of no text, such as padding, and rows whose scores are all -inf give 0.

    `sinks` [H], in the computing type, are the scores of one additional key per head, which every
    row sees and whose value is 0 (gpt-oss); neither `scale` nor `softcap` applies to them.

    `scale` defaults to 1/sqrt(D); `softcap` is as in `attention`. The element types are f16, bf16,
    f32 and f64; both pools have one, and the query and the result may have another. Everything is
    computed in f32, or in f64 if one of them is f64, and rounded once. Pools of si8 have D + 4 and
    E + 4 instead of D and E, as `update_pages` writes them. A page outside [0, P) raises
    ExecutionError when it runs. UsageError for operands and settings that do not fit.
    """
    _require_operands(query, key_pool, value_pool)
    _require_texts(page_table, row_starts, lengths)
    require_settings("paged_attention", query.shape[2], scale, window, softcap)
    rows, heads, head_dim = query.shape
    wide = dtypes.f64 if dtypes.f64 in (query.dtype, key_pool.dtype) else dtypes.f32
    _require_sinks(sinks, TensorType(wide, (heads,)))
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    # Queries are scaled once, not the scores of every key.
    queries = primitives.mul(converted(query, wide), splat(factor, wide, query.shape))
    table, starts, lengths = (converted(x, dtypes.si32) for x in (page_table, row_starts, lengths))
    # A loop over texts, since each has its own pages.
    step = _step(queries, (key_pool, value_pool), starts, sinks, window, softcap)
    value_dim = value_pool.shape[3] - vector_bytes(value_pool.type)
    nothing = splat(0, query.dtype, (rows, heads, value_dim))
    number = primitives.iota(lengths.shape, 0, dtypes.si32)
    (found,), _ = primitives.scan(step, [nothing], [number, table, lengths])
    return found


def _step(
    queries: Tensor,
    pools: tuple[Tensor, Tensor],
    row_starts: Tensor,
    sinks: Tensor | None,
    window: int | None,
    softcap: float | None,
) -> Body:
    """Return the loop body: it computes all rows as if they belonged to one text, and keeps that
    text's rows."""
    rows, heads, head_dim = queries.shape
    kv_heads = pools[0].shape[1]
    group = heads // kv_heads if kv_heads else 0
    grouped = primitives.reshape(queries, (rows, kv_heads, group, head_dim))
    one = splat(1, dtypes.si32)

    def step(found: Tensor, text: Tensor, table: Tensor, length: Tensor) -> Tensor:
        indices = (text, primitives.add(text, one))
        begin, end = (primitives.take(row_starts, index) for index in indices)
        keys, values = (
            converted(_numbers(primitives.take(pool, table)), queries.dtype) for pool in pools
        )  # (W, K, S, D)
        first, last = (
            primitives.sub(length, primitives.sub(end, begin)),
            primitives.sub(length, one),
        )
        row = primitives.iota((rows,), 0, dtypes.si32)
        position = primitives.add(row, expand(primitives.sub(length, end), row.shape))
        seen = _seen(position, position, keys, window)
        # Values of unseen positions may be NaN, and 0 * NaN is NaN: a probability of 0 does not
        # hide them.
        used = _seen(_vector(first), _vector(last), values, window)
        mixed = _mixed(_scores(grouped, keys, softcap), seen, _where(used, values), sinks)
        mixed = converted(primitives.reshape(mixed, found.shape), found.dtype)
        return primitives.select(_own(begin, end, found.shape), mixed, found)

    return step


def _numbers(pages: Tensor) -> Tensor:
    return read_vectors(pages) if pages.dtype is dtypes.si8 else pages


def _seen(first: Tensor, last: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Return which of the W * S positions are in (first - window, last]: i1 [N, W * S].

    `first` and `last` are of [N].
    """
    shape = (first.shape[0], keys.shape[0] * keys.shape[2])
    key = primitives.iota(shape, 1, dtypes.si32)
    newest, oldest = (expand(primitives.reshape(x, (shape[0], 1)), shape) for x in (last, first))
    seen = primitives.compare(key, newest, "le")
    if window is None:
        return seen
    age = primitives.sub(oldest, key)
    return primitives.bit_and(seen, primitives.compare(age, splat(window, age.dtype, shape), "lt"))


def _scores(queries: Tensor, keys: Tensor, softcap: float | None) -> Tensor:
    """Return capped products: [N, K, G, D], [W, K, S, D] -> [K, N, G, W, S]."""
    scores = primitives.dot_general(queries, keys, ([3], [3]), ([1], [1]))
    if softcap is None:
        return scores
    cap = splat(softcap, scores.dtype, scores.shape)
    return primitives.mul(primitives.tanh(primitives.div(scores, cap)), cap)


def _mixed(scores: Tensor, seen: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
    """Return values mixed by their scores: [K, N, G, W, S], [W, K, S, E] -> [N, K, G, E]."""
    kv_heads, rows, group, *pages = scores.shape
    shape = (kv_heads, rows, group, seen.shape[1])
    visible = expand(primitives.reshape(seen, (rows, 1, shape[3])), shape)
    hidden = splat(-math.inf, scores.dtype, shape)
    scores = primitives.select(visible, primitives.reshape(scores, shape), hidden)
    weights = safe_softmax(scores) if sinks is None else _with_sinks(scores, sinks)
    probabilities = primitives.reshape(weights, (*shape[:3], *pages))
    mixed = primitives.dot_general(probabilities, values, ([3, 4], [0, 2]), ([0], [1]))
    return primitives.transpose(mixed, (1, 0, 2, 3))


def _with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Return the softmax of scores [K, N, G, M] with an extra score for each head: [K * G]."""
    shape = scores.shape
    group = (shape[0], 1, shape[2], 1)
    sink = expand(primitives.reshape(sinks, group), (*shape[:3], 1))
    largest = primitives.maximum(primitives.reduce(scores, "max", [3], keepdims=True), sink)
    largest = finite_peak(largest)
    exponentials = primitives.exp(primitives.sub(scores, expand(largest, shape)))
    total = primitives.reduce(exponentials, "sum", [3], keepdims=True)
    # The sink takes part in the sum only: its value is 0.
    total = primitives.add(total, primitives.exp(primitives.sub(sink, largest)))
    return primitives.div(exponentials, expand(positive_total(total), shape))


def _where(used: Tensor, values: Tensor) -> Tensor:
    """Return values [W, K, S, E] with 0 at the positions that are not `used` [1, W * S]."""
    width, _, size, _ = values.shape
    used = expand(primitives.reshape(used, (width, 1, size, 1)), values.shape)
    return primitives.select(used, values, splat(0, values.dtype, values.shape))


def _own(begin: Tensor, end: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return whether `begin <= n < end` along the first axis: i1 of `shape`."""
    row = primitives.iota(shape, 0, dtypes.si32)
    above = primitives.compare(row, expand(begin, shape), "ge")
    return primitives.bit_and(above, primitives.compare(row, expand(end, shape), "lt"))


def _vector(x: Tensor) -> Tensor:
    return primitives.reshape(x, (1,))


def _require_operands(query: Tensor, key_pool: Tensor, value_pool: Tensor) -> None:
    name = "paged_attention"
    _require_floats(name, 3, query=query)
    _require_pools(name, key_pool=key_pool, value_pool=value_pool)
    require_same_dtype(name, key_pool, value_pool)
    heads, head_dim = query.shape[1:]
    pages, kv_heads, size, _ = key_pool.shape
    stored = head_dim + vector_bytes(key_pool.type)
    require_shape(name, "key_pool", key_pool, (pages, kv_heads, size, stored))
    require_shape(name, "value_pool", value_pool, (pages, kv_heads, size, value_pool.shape[3]))
    if heads % kv_heads if kv_heads else heads:
        raise UsageError(
            f"`{name}` needs the heads of the query to be a multiple of those of the pools,"
            f" got {heads} and {kv_heads}"
        )


def _require_texts(page_table: Tensor, row_starts: Tensor, lengths: Tensor) -> None:
    name = "paged_attention"
    require_integer(name, page_table=page_table, row_starts=row_starts, lengths=lengths)
    if page_table.rank != 2:
        raise UsageError(f"`{name}` needs a page table [B, W], got `{page_table.type}`")
    texts = page_table.shape[0]
    require_shape(name, "row_starts", row_starts, (texts + 1,))
    require_shape(name, "lengths", lengths, (texts,))


def _require_sinks(sinks: Tensor | None, type: TensorType) -> None:
    if sinks is not None:
        require_dtype("paged_attention", (type.dtype,), sinks=sinks)
        require_shape("paged_attention", "sinks", sinks, type.shape)


def _require_pools(name: str, **tensors: Tensor) -> None:
    """UsageError unless the tensors have rank 4 and hold floats or vectors as bytes."""
    require_dtype(name, (*_FLOATS, dtypes.si8), **tensors)
    for label, x in tensors.items():
        _require_rank(name, label, x, 4)
        if x.dtype is dtypes.si8 and x.shape[3] <= SCALE_BYTES:
            raise UsageError(f"`{name}` needs vectors of 8 bits and their scales, got `{x.type}`")


def _require_floats(name: str, rank: int, **tensors: Tensor) -> None:
    require_dtype(name, _FLOATS, **tensors)
    for label, x in tensors.items():
        _require_rank(name, label, x, rank)


def _require_rank(name: str, label: str, x: Tensor, rank: int) -> None:
    if x.rank != rank:
        raise UsageError(f"`{name}` needs `{label}` of rank {rank}, got `{x.type}`")
