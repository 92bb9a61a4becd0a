"""Lowerings of the ops that read at positions given by another tensor."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Op, dtypes, ops
from gptrs_backend_jax import lowering
from gptrs_backend_jax.element_types import NUMBERS, narrow, widen
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext
from gptrs_backend_jax.lowerings.reduction import start

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
    least, most = dtype.limits
    outside = lowering.zeros(indices.shape, np.bool_)
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
        return lowering.zeros(ctx.result.shape, x.dtype)
    return taken(x, rows)


def taken(x: Array, rows: Array) -> Array:
    """Return the rows of indices in [0, N)."""
    return x.at[rows].get(mode=IN_BOUNDS, wrap_negative_indices=False)


@TABLE.register(indexing.Gather, dtypes=dtypes.ALL)
def gather(op: indexing.Gather, ctx: LoweringContext, x: Array, indices: Array) -> Array:
    """Return elements by index along the axis."""
    positions = checked(ctx, indices, 1, op.axis, x.shape[op.axis])
    if not x.size or not positions.size:
        return lowering.zeros(ctx.result.shape, x.dtype)
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
    targets = _clamped(starts, ctx.operands[1].dtype, x.shape, op.sizes)
    return lax.dynamic_slice(x, targets, op.sizes, allow_negative_indices=False)


@TABLE.register(indexing.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_update_slice(
    op: Op, ctx: LoweringContext, x: Array, update: Array, starts: Array
) -> Array:
    """Return `x` with the block at the clamped starts replaced."""
    targets = _clamped(starts, ctx.operands[2].dtype, x.shape, update.shape)
    return lax.dynamic_update_slice(x, update, targets, allow_negative_indices=False)


def _clamped(starts: Array, dtype: DType, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Arrays:
    """Return the starts, each in [0, dim - size], as si64."""
    _, most = dtype.limits
    ends = [min(dim - size, most) for dim, size in zip(dims, sizes, strict=True)]
    upper = lowering.array(np.array(ends, starts.dtype))
    inside = lax.clamp(lax.full_like(starts, 0), starts, upper)
    wide = lax.convert_element_type(inside, np.int64)
    return [wide[axis] for axis in range(len(ends))]


# Lowerings of the ops that write at positions given by another tensor.


ScatterReduce = indexing.ScatterReduce
Place = tuple[Array, ...]


def _combined(target: Array, kind: str, index: Place, updates: Array) -> Array:
    """Return `target` with updates combined into the elements at `index`, in any order."""
    at = target.at[index]
    combine: dict[str, Callable[..., Array]] = {
        "add": at.add,
        "sum": at.add,
        "mul": at.multiply,
        "prod": at.multiply,
        "max": at.max,
        "min": at.min,
    }
    return combine[kind](updates, mode=IN_BOUNDS)


@TABLE.register(ScatterReduce, dtypes=dtypes.ALL)
def scatter_reduce(
    op: ScatterReduce, ctx: LoweringContext, x: Array, indices: Array, updates: Array
) -> Array:
    """Return `x` with the updates combined into it."""
    dtype = ctx.result.dtype
    along = checked(ctx, indices, 1, op.axis, x.shape[op.axis], "writes")
    if not along.size or not x.size:
        return x
    if op.kind == "replace":
        return _replaced(op, ctx, x, along, updates)
    index = tuple(
        along if axis == op.axis else lowering.iota(np.int32, along.shape, axis)
        for axis in range(x.ndim)
    )
    return narrow(dtype, _combined(widen(dtype, x), op.kind, index, widen(dtype, updates)))


def _replaced(
    op: ScatterReduce, ctx: LoweringContext, x: Array, along: Array, updates: Array
) -> Array:
    """Write the last of the updates of each element; whole rows where their indices are one.

    XLA leaves the order of several updates open, so that all but the last are sent outside of the
    tensor, where they are dropped.
    """
    if op.axis == 0 and ctx.walk.repeats_rows(ctx.instruction.operands[1]):
        rows = along[(slice(None), *([0] * (along.ndim - 1)))]
        kept = _last_of_equals(rows, x.shape[0])
        kept, updates = _as_they_lie(ctx, kept, updates)
        width = updates.shape[1:]
        whole = x.at[(kept, *(slice(size) for size in width))]
        return whole.set(updates, mode="drop", unique_indices=True)
    index = [lowering.iota(along.dtype, along.shape, axis) for axis in range(x.ndim)]
    index[op.axis] = along
    number = lowering.zeros(along.shape, np.int64)
    for part, dim in zip(index, x.shape, strict=True):
        number = number * dim + lax.convert_element_type(part, np.int64)
    flat = lax.reshape(number, (number.size,))
    kept = _last_of_equals(flat, x.size)
    line = lax.reshape(x, (x.size,))
    written = line.at[kept].set(
        lax.reshape(updates, (updates.size,)), mode="drop", unique_indices=True
    )
    return lax.reshape(written, x.shape)


def _as_they_lie(ctx: LoweringContext, rows: Array, updates: Array) -> tuple[Array, Array]:
    """Return the rows and their updates in an order in which XLA need not copy the latter.

    The keys of a prompt come token by token, and are written head by head.
    """
    made = ctx.walk.maker(ctx.instruction.operands[2])
    if made is None or not isinstance(made[0].op, ops.layout.Reshape) or updates.ndim != 2:
        return rows, updates
    turned = ctx.walk.maker(made[0].operands[0])
    if turned is None or not isinstance(turned[0].op, ops.layout.Transpose):
        return rows, updates
    (source,) = turned[1]
    if turned[0].op.permutation != (1, 0, 2) or source.shape[2] != updates.shape[1]:
        return rows, updates
    before = lax.reshape(rows, (source.shape[1], source.shape[0]))
    in_order = lax.reshape(lax.transpose(before, (1, 0)), rows.shape)
    return in_order, lax.reshape(source, updates.shape)


def _last_of_equals(indices: Array, size: int) -> Array:
    """Return a vector of indices in which all but the last of equal ones are `size` or more.

    Those are all different, so that XLA may write in any order.
    """
    count = indices.shape[0]
    order = lax.iota(indices.dtype, count)
    ordered, targets = lax.sort((indices, order), num_keys=1, is_stable=True)
    following = lax.concatenate([ordered[1:], lowering.full((1,), -1, ordered.dtype)], 0)
    target = lax.select(ordered != following, ordered, size + targets)
    return lax.sort((targets, target), num_keys=1)[1]


@TABLE.register(indexing.SegmentReduce, dtypes=NUMBERS)
def segment_reduce(
    op: indexing.SegmentReduce, ctx: LoweringContext, x: Array, segment_ids: Array
) -> Array:
    """Combine every row into the row of its segment."""
    dtype = ctx.result.dtype
    rows = checked(ctx, segment_ids, 1, 0, op.num_segments, "writes")
    wide = widen(dtype, x)
    total = lowering.full(ctx.result.shape, start(op.kind, dtype, wide), wide.dtype)
    if wide.size and total.size:
        total = _combined(total, op.kind, (rows,), wide)
    return narrow(dtype, total)
