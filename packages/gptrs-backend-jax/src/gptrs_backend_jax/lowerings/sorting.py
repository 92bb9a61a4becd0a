"""Lowerings of the ops that put elements in order."""

from __future__ import annotations

from jax import Array, lax

from gptrs.api.programs import DType, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.element_types import ORDERED, order_keys
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext

sorting = ops.sorting


@TABLE.register(sorting.Sort, dtypes=ORDERED)
def sort(op: sorting.Sort, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Sort each operand by the order of the first; the sort is always stable."""
    return _sorted(ctx.operands[0].dtype, operands, op.axis, op.descending)


@TABLE.register(sorting.TopK, dtypes=ORDERED)
def top_k(op: sorting.TopK, ctx: LoweringContext, x: Array) -> Arrays:
    """Return the first `k` elements of a stable sort, and their indices."""
    positions = typed_lax.iota(op.indices_dtype.numpy, x.shape, op.axis)
    ordered = _sorted(ctx.operands[0].dtype, (x, positions), op.axis, op.largest)
    return tuple(lax.slice_in_dim(y, 0, op.k, axis=op.axis) for y in ordered)


def _sorted(dtype: DType, operands: Arrays, axis: int, descending: bool) -> Arrays:
    keys, _ = order_keys(dtype, operands[0])
    if descending:
        keys = ~keys  # turns the order of integers around, and equal ones stay equal
    return lax.sort((keys, *operands), dimension=axis, is_stable=True, num_keys=1)[1:]
