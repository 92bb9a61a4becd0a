"""Lowerings of the ops that read at positions given by another tensor."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Op, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.element_types import integer_limits
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext

indexing = ops.indexing
IN_BOUNDS = "promise_in_bounds"


def checked(
    ctx: LoweringContext, indices: Array, operand: int, axis: int, size: int, does: str = "reads"
) -> Array:
    """Return indices in [0, size) as si32, si64 for large axes; report the first that is outside.

    `operand` is the number of the indices among the operands. Those outside become 0.
    """
    outside = _outside(indices, ctx.operands[operand].dtype, size)
    name = ctx.instruction.op.name
    ctx.walk.check(
        outside, indices, f"`{name}` {does} index {{}} of axis {axis}, which has size {size}"
    )
    return _inside(indices, outside, size)


def inside(indices: Array, dtype: DType, size: int) -> Array:
    """Return what `checked` does, of indices that it has checked."""
    return _inside(indices, _outside(indices, dtype, size), size)


def _outside(indices: Array, dtype: DType, size: int) -> Array:
    least, most = integer_limits(dtype)
    outside = typed_lax.zeros(indices.shape, np.bool_)
    if least < 0:
        outside = outside | (indices < 0)
    if size <= most:
        outside = outside | (indices >= size)
    return outside


def _inside(indices: Array, outside: Array, size: int) -> Array:
    kept = lax.select(outside, lax.full_like(indices, 0), indices)
    return lax.convert_element_type(kept, np.int32 if size < 2**31 else np.int64)


@TABLE.register(indexing.Take, dtypes=dtypes.ALL)
def take(op: Op, ctx: LoweringContext, x: Array, indices: Array) -> Array:
    """Return the rows of these indices."""
    rows = checked(ctx, indices, 1, 0, x.shape[0])
    if not x.size or not rows.size:
        return typed_lax.zeros(ctx.result.shape, x.dtype)
    return taken(x, rows)


def taken(x: Array, rows: Array) -> Array:
    """Return the rows of indices in [0, N)."""
    return x.at[rows].get(mode=IN_BOUNDS, wrap_negative_indices=False)


@TABLE.register(indexing.Gather, dtypes=dtypes.ALL)
def gather(op: indexing.Gather, ctx: LoweringContext, x: Array, indices: Array) -> Array:
    """Return elements by index along the axis."""
    positions = checked(ctx, indices, 1, op.axis, x.shape[op.axis])
    if not x.size or not positions.size:
        return typed_lax.zeros(ctx.result.shape, x.dtype)
    # `indices` may be shorter than `x` along the other axes.
    limits = [
        dim if axis == op.axis else size
        for axis, (dim, size) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    read = lax.slice(x, [0] * x.ndim, limits)
    return jnp.take_along_axis(read, positions, axis=op.axis, mode=IN_BOUNDS)


@TABLE.register(indexing.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slice(
    op: indexing.DynamicSlice, ctx: LoweringContext, x: Array, starts: Array
) -> Array:
    """Return the block at the clamped starts."""
    places = _clamped(starts, ctx.operands[1].dtype, x.shape, op.sizes)
    return lax.dynamic_slice(x, places, op.sizes, allow_negative_indices=False)


@TABLE.register(indexing.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_update_slice(
    op: Op, ctx: LoweringContext, x: Array, update: Array, starts: Array
) -> Array:
    """Return `x` with the block at the clamped starts replaced."""
    places = _clamped(starts, ctx.operands[2].dtype, x.shape, update.shape)
    return lax.dynamic_update_slice(x, update, places, allow_negative_indices=False)


def _clamped(starts: Array, dtype: DType, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Arrays:
    """Return the starts, each in [0, dim - size], as si64."""
    _, most = integer_limits(dtype)
    ends = [min(dim - size, most) for dim, size in zip(dims, sizes, strict=True)]
    upper = typed_lax.array(np.array(ends, starts.dtype))
    inside = lax.clamp(lax.full_like(starts, 0), starts, upper)
    wide = lax.convert_element_type(inside, np.int64)
    return [wide[axis] for axis in range(len(ends))]
