"""Lowerings of the ops that move elements without computing on them."""

from __future__ import annotations

from jax import Array, lax

from gptrs.api.programs import DType, Literal, Op, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.element_types import constant
from gptrs_backend_jax.lowering import TABLE, LoweringContext

layout = ops.layout


def padding_value(value: Literal | None, dtype: DType, x: Array) -> Array:
    """Return the scalar that pads `x`: zero unless an attribute says another."""
    if value is None:
        return typed_lax.zeros((), x.dtype)
    return typed_lax.array(constant(value.array, dtype))


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
    return typed_lax.broadcast_to(x, ctx.result.shape)


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
        return typed_lax.broadcast_to(value, shape)
    x = lax.slice_in_dim(x, first, last, axis=axis)
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (max(low, 0), max(high, 0), 0)
    return lax.pad(x, value, config)


@TABLE.register(layout.Tile, dtypes=dtypes.ALL)
def tile(op: layout.Tile, ctx: LoweringContext, x: Array) -> Array:
    """Repeat the whole tensor along each axis."""
    pairs = list(zip(op.repeats, x.shape, strict=True))
    split = lax.reshape(x, [size for dim in x.shape for size in (1, dim)])
    repeated = typed_lax.broadcast_to(split, [size for pair in pairs for size in pair])
    return lax.reshape(repeated, ctx.result.shape)


@TABLE.register(layout.Reverse, dtypes=dtypes.ALL)
def reverse(op: layout.Reverse, ctx: LoweringContext, x: Array) -> Array:
    """Reverse the order of the elements along the axes."""
    return lax.rev(x, op.axes)
