"""Lowerings of the ops that move elements without computing on them."""

from __future__ import annotations

import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Literal, Op, dtypes, ops
from gptrs_backend_jax import lowering
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import ORDERED, REALS, constant, held, order_keys
from gptrs_backend_jax.lowering import TABLE, Arrays, LoweringContext

layout = ops.layout


def padding_value(value: Literal | None, dtype: DType, x: Array) -> Array:
    """Return the scalar that pads `x`: zero unless an attribute says another."""
    if value is None:
        return lowering.zeros((), x.dtype)
    return lowering.array(constant(value.array, dtype))


@TABLE.register(layout.Reshape, dtypes=dtypes.ALL)
def reshape(_: Op, ctx: LoweringContext, x: Array) -> Array:
    """Return the same elements, in row-major order, in another shape."""
    return lax.reshape(x, ctx.result.shape)


@TABLE.register(layout.Transpose, dtypes=dtypes.ALL)
def transpose(op: layout.Transpose, ctx: LoweringContext, x: Array) -> Array:
    """Permute the axes."""
    return lax.transpose(x, op.permutation)


@TABLE.register(layout.BroadcastTo, dtypes=dtypes.ALL)
def broadcast_to(op: layout.BroadcastTo, ctx: LoweringContext, x: Array) -> Array:
    """Repeat the elements along new axes and axes of size 1."""
    return lowering.broadcast_to(x, ctx.result.shape)


@TABLE.register(layout.Slice, dtypes=dtypes.ALL)
def slice_(op: layout.Slice, ctx: LoweringContext, x: Array) -> Array:
    """Return `size` elements of each axis, from `start` on, a step apart."""
    steps = op.steps(x.ndim)
    spans = zip(op.starts, op.sizes, steps, strict=True)
    ends = [start + (size - 1) * stride + 1 if size else start for start, size, stride in spans]
    return lax.slice(x, op.starts, ends, steps)


@TABLE.register(layout.Concat, dtypes=dtypes.ALL)
def concat(op: layout.Concat, ctx: LoweringContext, *parts: Array) -> Array:
    """Join the operands along the axis."""
    return lax.concatenate(parts, op.axis)


@TABLE.register(layout.Pad, dtypes=dtypes.ALL)
def pad(op: layout.Pad, ctx: LoweringContext, x: Array) -> Array:
    """Put `value` between and around the elements, or trim them; one axis after another."""
    value = padding_value(op.value, ctx.result.dtype, x)
    between = op.between(x.ndim)
    x = lax.pad(x, value, [(0, 0, interior) for interior in between])
    for axis, (low, high) in enumerate(zip(op.low, op.high, strict=True)):
        x = _padded_axis(x, value, axis, low, high)
    return x


def _padded_axis(x: Array, value: Array, axis: int, low: int, high: int) -> Array:
    """Trim what a negative side takes away, then add; a side may trim all if the other adds."""
    size = x.shape[axis]
    first = min(max(-low, 0), size)
    last = max(size - max(-high, 0), first)
    if last == first:
        shape = (*x.shape[:axis], size + low + high, *x.shape[axis + 1 :])
        return lowering.broadcast_to(value, shape)
    x = lax.slice_in_dim(x, first, last, axis=axis)
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (max(low, 0), max(high, 0), 0)
    return lax.pad(x, value, config)


@TABLE.register(layout.Tile, dtypes=dtypes.ALL)
def tile(op: layout.Tile, ctx: LoweringContext, x: Array) -> Array:
    """Repeat the whole tensor along each axis."""
    pairs = list(zip(op.repeats, x.shape, strict=True))
    split = lax.reshape(x, [size for dim in x.shape for size in (1, dim)])
    repeated = lowering.broadcast_to(split, [size for pair in pairs for size in pair])
    return lax.reshape(repeated, ctx.result.shape)


@TABLE.register(layout.Reverse, dtypes=dtypes.ALL)
def reverse(op: layout.Reverse, ctx: LoweringContext, x: Array) -> Array:
    """Reverse the order of the elements along the axes."""
    return lax.rev(x, op.axes)


# Lowerings of the ops that make a tensor from attributes only.


@TABLE.register(ops.creation.Constant, dtypes=dtypes.ALL)
def literal(op: ops.creation.Constant, ctx: LoweringContext) -> Array:
    """Return the elements of the literal; a repeated element is passed to XLA once."""
    array = constant(op.value.array, ctx.result.dtype)
    if op.value.splat is None:
        return lowering.array(array)
    return lowering.full(array.shape, array.reshape(-1)[0], array.dtype)


@TABLE.register(ops.creation.Iota, dtypes=REALS)
def iota(op: ops.creation.Iota, ctx: LoweringContext) -> Array:
    """Return 0, 1, ... along the axis."""
    if op.dtype.bits >= 16 and not op.dtype.is_float:
        return lowering.iota(held(op.dtype), op.shape, op.axis)
    wide = lowering.iota(np.int64, op.shape, op.axis)
    return convert(wide, dtypes.si64, op.dtype)


# Lowerings of the ops that put elements in order.


sorting = ops.sorting


@TABLE.register(sorting.Sort, dtypes=ORDERED)
def sort(op: sorting.Sort, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Sort each operand by the order of the first; the sort is always stable."""
    return _sorted(ctx.operands[0].dtype, operands, op.axis, op.descending)


@TABLE.register(sorting.TopK, dtypes=ORDERED)
def top_k(op: sorting.TopK, ctx: LoweringContext, x: Array) -> Arrays:
    """Return the first `k` elements of a stable sort, and their indices."""
    positions = lowering.iota(op.indices_dtype.numpy, x.shape, op.axis)
    ordered = _sorted(ctx.operands[0].dtype, (x, positions), op.axis, op.largest)
    return tuple(lax.slice_in_dim(y, 0, op.k, axis=op.axis) for y in ordered)


def _sorted(dtype: DType, operands: Arrays, axis: int, descending: bool) -> Arrays:
    keys, _ = order_keys(dtype, operands[0])
    if descending:
        keys = ~keys  # reverses the order of integers, and keeps equal ones equal
    return lax.sort((keys, *operands), dimension=axis, is_stable=True, num_keys=1)[1:]


# Lowerings of the ops that run regions and functions.


control_flow = ops.control_flow


@TABLE.register(control_flow.Cond, dtypes=[dtypes.i1])
def cond(op: Op, ctx: LoweringContext, predicate: Array, *operands: Array) -> Arrays:
    """Run the first region if the predicate is true, else the second."""
    return ctx.walk.cond(predicate, ctx.instruction.regions, operands)


@TABLE.register(control_flow.While, dtypes=[dtypes.i1])
def while_(op: Op, ctx: LoweringContext, *state: Array) -> Arrays:
    """Run the body while the condition holds; return the first state for which it does not."""
    condition, body = ctx.instruction.regions
    return ctx.walk.loop(condition, body, state)


@TABLE.register(control_flow.Scan, dtypes=[dtypes.i1])
def scan(op: control_flow.Scan, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the body for each step; return the last carried values, then the stacked results."""
    carried, scanned = operands[: op.carry_count], operands[op.carry_count :]
    (body,) = ctx.instruction.regions
    return ctx.walk.scan(body, carried, scanned, op.steps(ctx.operands), op.reverse)


@TABLE.register(control_flow.Call, ops.custom_call.Composite, dtypes=[dtypes.i1])
def call(op: Op, ctx: LoweringContext, *operands: Array) -> Arrays:
    """Run the function."""
    (function,) = op.callees()
    return ctx.walk.call(function, operands)
