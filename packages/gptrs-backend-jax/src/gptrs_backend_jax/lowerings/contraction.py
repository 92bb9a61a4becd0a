"""Lowerings of the ops that multiply and sum over shared axes of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Value, dtypes, ops
from gptrs_backend_jax import lowering
from gptrs_backend_jax.element_types import NUMBERS, computing
from gptrs_backend_jax.lowering import TABLE, LoweringContext, from_accumulator, to_accumulator
from gptrs_backend_jax.lowerings.indexing import inside, taken

# Products with pages of a key/value cache, read where they lie instead of copied to be multiplied.
#
# XLA on CPUs copies the pages of a text before it multiplies them: 1.8 of 18 ms of a step of GPT-2
# 124M. A product with all pages of a pool that holds few others needs no copy, since the heads of a
# page lie as batches of a product do:
#
#     product(x, take(pool, table)) = take(product(x, pool), table)
#     product(p, where(used, take(pool, table), 0)) = product(q, pool)
#
# where `q` has for each page of the pool the weights of its slot in the table, 0 without one.


DotGeneral = ops.contraction.DotGeneral
_POOL_PART = 2
"""A pool may have so many times the pages of a table for all of them to be multiplied."""
_FEW_ROWS = 4
"""Positions of a page that pay for one row: values give a row of sums for each page."""
_TYPES = (dtypes.f32, dtypes.f64)
"""Types that CPUs multiply without conversions, and sum in themselves."""


class _Pages(NamedTuple):
    pool: Array
    """The pages, [P, K, S, D]."""
    table: Array
    """The pages of a text, [W], each in [0, P)."""


def product_in_place(op: DotGeneral, ctx: LoweringContext, lhs: Array) -> Array | None:
    """Return the product of an instruction with pages; None if copying them is faster."""
    dtype = ctx.operands[0].dtype
    is_plain = dtype in _TYPES and op.accumulator(ctx.operands[0]) is dtype is ctx.result.dtype
    if not ctx.walk.for_one_cpu or not is_plain or op.batch_rhs != (1,):
        return None
    if op.contract_rhs == (3,):
        return _product_of_keys(op, ctx, lhs)
    if op.contract_rhs == (0, 2):
        return _product_of_values(op, ctx, lhs)
    return None


def _product_of_keys(op: DotGeneral, ctx: LoweringContext, lhs: Array) -> Array | None:
    """[K, .., D], pages [W, K, S, D] -> [K, .., W, S], the axes of `lhs` in any order."""
    pages = _pages(ctx, ctx.instruction.operands[1])
    if pages is None or not _pays(lhs.size // lhs.shape[op.contract_lhs[0]], pages):
        return None
    (head,), (last,) = op.batch_lhs, op.contract_lhs
    rows = _ordered(lhs, [head], [last])  # (K, R, D)
    everywhere = lowering.broadcast_to(rows, (len(pages.pool), *rows.shape))
    scores = taken(_batched(everywhere, pages.pool, 3), pages.table)  # (W, K, R, S)
    return lax.reshape(lax.transpose(scores, (1, 2, 0, 3)), ctx.result.shape)


def _product_of_values(op: DotGeneral, ctx: LoweringContext, lhs: Array) -> Array | None:
    """[K, .., W, S], values [W, K, S, E] that are 0 where unused -> [K, .., E].

    A weight of 0 cancels a finite number but turns an infinity into NaN. So if the result is not
    finite, or a page occurs several times in the table, the pages are copied after all.
    """
    found = _used_pages(ctx, ctx.instruction.operands[1])
    if found is None:
        return None
    pages, used = found
    if not _pays(lhs.size // used.size, pages):
        return None
    (head,), (index, position) = op.batch_lhs, op.contract_lhs
    weights = _ordered(lhs, [index, head], [position])  # (W, K, R, S)
    per_page, is_exact = _by_page(weights, pages, used)
    mixed = _batched(per_page, pages.pool, 2)  # (P, K, R, E)
    total = lowering.reduce(mixed, np.zeros((), mixed.dtype), lax.add, (0,))
    is_exact &= jnp.all(lax.is_finite(total)) & jnp.all(lax.is_finite(weights))
    operands = (total, weights, pages.pool, pages.table, used)
    return lax.reshape(lowering.cond(is_exact, _total, _copied, operands), ctx.result.shape)


def _by_page(weights: Array, pages: _Pages, used: Array) -> tuple[Array, Array]:
    """Return weights [P, K, R, S] for the pages of the pool, and whether each occurs once."""
    count = len(pages.pool)
    is_page = pages.table == lowering.iota(pages.table.dtype, (count, len(pages.table)), 0)
    is_there = is_page & jnp.any(used, axis=1)  # (P, W)
    is_used = lowering.broadcast_in(used, weights.shape, (0, 3))
    kept = lax.select(is_used, weights, lax.full_like(weights, 0))
    of_pool = taken(kept, jnp.argmax(is_there, axis=1).astype(pages.table.dtype))
    occurs_once = lowering.broadcast_in(jnp.any(is_there, axis=1), of_pool.shape, (0,))
    per_page = lax.select(occurs_once, of_pool, lax.full_like(of_pool, 0))
    return per_page, jnp.all(jnp.sum(is_there, axis=1) <= 1)


_Operands = tuple[Array, Array, Array, Array, Array]


def _total(operands: _Operands) -> Array:
    return operands[0]


def _copied(operands: _Operands) -> Array:
    _, weights, pool, table, used = operands
    values = taken(pool, table)
    is_used = lowering.broadcast_in(used, values.shape, (0, 2))
    values = lax.select(is_used, values, lax.full_like(values, 0))
    axes = ((0, 3), (0, 2)), ((1,), (1,))
    return lowering.dot_general(weights, values, axes, weights.dtype)


def _batched(lhs: Array, pool: Array, contracted: int) -> Array:
    """Multiply [P, K, R, *] with [P, K, S, D] over its axis `contracted`, page by page."""
    axes = ((3,), (contracted,)), ((0, 1), (0, 1))
    return lowering.dot_general(lhs, pool, axes, pool.dtype)


def _ordered(x: Array, first: Sequence[int], last: Sequence[int]) -> Array:
    """Return `x` with these axes first and last, and the others as one between."""
    between = [axis for axis in range(x.ndim) if axis not in (*first, *last)]
    order = (*first, *between, *last)
    sizes = [[x.shape[axis] for axis in axes] for axes in (first, between, last)]
    return lax.reshape(
        lax.transpose(x, order), (*sizes[0], int(np.prod(sizes[1], dtype=int)), *sizes[2])
    )


def _pays(rows: int, pages: _Pages) -> bool:
    """Return whether the product of so many rows of all heads is faster than copying pages."""
    count, heads, size, _ = pages.pool.shape
    return count <= _POOL_PART * len(pages.table) and rows * _FEW_ROWS <= heads * size


def _pages(ctx: LoweringContext, value: Value) -> _Pages | None:
    """Return the pool and the table that `value` was taken from, None for other values."""
    made = ctx.walk.maker(value)
    if made is None or not isinstance(made[0].op, ops.indexing.Take):
        return None
    pool, table = made[1]
    if pool.ndim != 4 or table.ndim != 1 or not pool.size or not table.size:
        return None
    return _Pages(pool, inside(table, made[0].operands[1].type.dtype, len(pool)))


def _used_pages(ctx: LoweringContext, value: Value) -> tuple[_Pages, Array] | None:
    """Return the pages in `value`, and the positions that it keeps, i1 [W, S]."""
    made = ctx.walk.maker(value)
    if made is None or not isinstance(made[0].op, ops.elementwise.Select):
        return None
    predicate, values, otherwise = made[0].operands
    pages, mask = _pages(ctx, values), ctx.walk.maker(predicate)
    if pages is None or mask is None or not _is_zero(ctx, otherwise):
        return None
    shape = (len(pages.table), 1, pages.pool.shape[2], 1)
    if not isinstance(mask[0].op, ops.layout.BroadcastTo) or mask[1][0].shape != shape:
        return None
    return pages, lax.reshape(mask[1][0], (shape[0], shape[2]))


def _is_zero(ctx: LoweringContext, value: Value) -> bool:
    """Return whether `value` is known to be all 0."""
    made = ctx.walk.maker(value)
    while made is not None and isinstance(made[0].op, ops.layout.BroadcastTo):
        made = ctx.walk.maker(made[0].operands[0])
    if made is None or not isinstance(made[0].op, ops.creation.Constant):
        return False
    return not made[0].op.value.array.any()


@TABLE.register(DotGeneral, dtypes=NUMBERS)
def dot_general(op: DotGeneral, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Multiply with exact products, summed in the accumulate type."""
    in_place = product_in_place(op, ctx, lhs)
    if in_place is not None:
        return in_place
    dtype, accum = ctx.operands[0].dtype, op.accumulator(ctx.operands[0])
    if not _is_multiplied_as_it_is(dtype, accum):
        lhs, rhs = (to_accumulator(x, dtype, accum) for x in (lhs, rhs))
    axes = (op.contract_lhs, op.contract_rhs), (op.batch_lhs, op.batch_rhs)
    if not op.batch_lhs or not op.contract_lhs:
        total = lowering.dot_general(lhs, rhs, axes, computing(accum))
        return from_accumulator(total, accum, ctx.result.dtype)
    lhs, (lhs_contracted, lhs_free) = _as_matrices(lhs, op.batch_lhs, op.contract_lhs)
    rhs, (rhs_contracted, rhs_free) = _as_matrices(rhs, op.batch_rhs, op.contract_rhs)
    batch = tuple(range(len(op.batch_lhs)))
    axes = ((lhs_contracted,), (rhs_contracted,)), (batch, batch)
    total = lowering.dot_general(lhs, rhs, axes, computing(accum))
    shape = (*lhs.shape[: len(batch)], *lhs_free, *rhs_free)
    return from_accumulator(lax.reshape(total, shape), accum, ctx.result.dtype)


def _as_matrices(
    x: Array, batch: Sequence[int], contracted: Sequence[int]
) -> tuple[Array, tuple[int, Sequence[int]]]:
    """Return `x` with its batch axes first, then one contracted axis and one for all others.

    Keeps which of both is last: XLA otherwise puts the contracted axis of `rhs` first, which on
    CPUs transposes each row of a key/value cache that is read. Also the contracted axis, and the
    sizes of the others.
    """
    free = [axis for axis in range(x.ndim) if axis not in (*batch, *contracted)]
    is_last = not free or contracted[-1] > free[-1]
    order = (*batch, *free, *contracted) if is_last else (*batch, *contracted, *free)
    sizes = [x.shape[axis] for axis in free]
    pair = [math.prod(sizes), math.prod(x.shape[axis] for axis in contracted)]
    moved = x if order == tuple(range(x.ndim)) else lax.transpose(x, order)
    shape = (*(x.shape[axis] for axis in batch), *(pair if is_last else pair[::-1]))
    return lax.reshape(moved, shape), (len(batch) + is_last, sizes)


def _is_multiplied_as_it_is(dtype: DType, accum: DType) -> bool:
    """Whether devices multiply the type itself and sum in `accum`: products of 16 bits are f32."""
    return dtype in (dtypes.bf16, dtypes.f16) and accum is dtypes.f32
