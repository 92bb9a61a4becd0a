"""Lowerings of the ops that multiply and sum over shared axes of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import Array, lax

from gptrs.api.programs import DType, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.accumulation import from_accumulator, to_accumulator
from gptrs_backend_jax.element_types import NUMBERS, computing
from gptrs_backend_jax.lowering import TABLE, LoweringContext
from gptrs_backend_jax.lowerings.page_products import product_in_place

DotGeneral = ops.contraction.DotGeneral


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
        total = typed_lax.dot_general(lhs, rhs, axes, computing(accum))
        return from_accumulator(total, accum, ctx.result.dtype)
    lhs, (lhs_contracted, lhs_free) = _as_matrices(lhs, op.batch_lhs, op.contract_lhs)
    rhs, (rhs_contracted, rhs_free) = _as_matrices(rhs, op.batch_rhs, op.contract_rhs)
    batch = tuple(range(len(op.batch_lhs)))
    axes = ((lhs_contracted,), (rhs_contracted,)), (batch, batch)
    total = typed_lax.dot_general(lhs, rhs, axes, computing(accum))
    shape = (*lhs.shape[: len(batch)], *lhs_free, *rhs_free)
    return from_accumulator(lax.reshape(total, shape), accum, ctx.result.dtype)


def _as_matrices(
    x: Array, batch: Sequence[int], contracted: Sequence[int]
) -> tuple[Array, tuple[int, Sequence[int]]]:
    """Return `x` with its batch axes first, then one contracted axis and one for all others.

    Which of both is the last stays so: XLA always puts the contracted axis of `rhs` before, and on
    CPUs that turns each row of a key/value cache that is read. Also the contracted axis, and the
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
