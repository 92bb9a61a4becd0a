"""Lowerings of the ops that combine the elements along some axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, dtypes, ops
from gptrs_backend_jax import lowering
from gptrs_backend_jax.element_types import (
    F8E4M3_GREATEST,
    NUMBERS,
    ORDERED,
    narrow,
    order_keys,
    widen,
)
from gptrs_backend_jax.lowering import TABLE, LoweringContext, from_accumulator, to_accumulator
from gptrs_backend_jax.lowerings.layout import padding_value

reduction = ops.reduction

COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def identity(kind: str, dtype: DType) -> complex:
    """Return the result of a reduction of `kind` over no elements."""
    if kind in ("sum", "or"):
        return 0
    if kind == "prod":
        return 1
    if dtype.is_bool:
        return kind in ("and", "min")
    if kind == "and":
        return dtype.limits[1] if dtype.kind == "unsigned" else -1
    if dtype.is_integer:
        return dtype.limits[0 if kind == "max" else 1]
    greatest = F8E4M3_GREATEST if dtype is dtypes.f8e4m3 else math.inf
    return -greatest if kind == "max" else greatest


def start(kind: str, dtype: DType, x: Array) -> np.ndarray:
    """Return the identity as a scalar of the type of `x`, in which elements of `dtype` are."""
    return np.array(identity(kind, dtype), x.dtype)


@TABLE.register(reduction.Reduce, dtypes=dtypes.ALL)
def reduce(op: reduction.Reduce, ctx: LoweringContext, x: Array) -> Array:
    """Combine the elements along the axes."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    if op.axes:
        wide = lowering.reduce(wide, start(op.kind, accum, wide), COMBINE[op.kind], op.axes)
    shaped = lax.reshape(wide, ctx.result.shape)
    return from_accumulator(shaped, accum, ctx.result.dtype)


@TABLE.register(reduction.Argmax, dtypes=ORDERED)
def argmax(op: reduction.Argmax, ctx: LoweringContext, x: Array) -> Array:
    """Return the position of the first NaN, else of the first of the largest."""
    keys, _ = order_keys(ctx.operands[0].dtype, x)
    return _position(jnp.argmax, op, keys)


@TABLE.register(reduction.Argmin, dtypes=ORDERED)
def argmin(op: reduction.Argmin, ctx: LoweringContext, x: Array) -> Array:
    """Return the position of the first NaN, else of the first of the least."""
    keys, is_nan = order_keys(ctx.operands[0].dtype, x)
    if is_nan is not None:
        keys = lax.select(is_nan, lax.full_like(keys, np.iinfo(keys.dtype).min), keys)
    return _position(jnp.argmin, op, keys)


def _position(
    find: Callable[..., Array], op: reduction.Argmax | reduction.Argmin, keys: Array
) -> Array:
    found = find(keys, axis=op.axis, keepdims=op.keepdims)
    return lax.convert_element_type(found, op.dtype.numpy)


CUMULATIVE: dict[str, Callable[..., Array]] = {
    "sum": lax.cumsum,
    "prod": lax.cumprod,
    "max": lax.cummax,
    "min": lax.cummin,
}


@TABLE.register(reduction.Cumulative, dtypes=NUMBERS)
def cumulative(op: reduction.Cumulative, ctx: LoweringContext, x: Array) -> Array:
    """Return the totals up to each element along the axis."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    if wide.size:
        if op.exclusive:
            shift = [(0, 0, 0)] * wide.ndim
            shift[op.axis] = (-1, 1, 0) if op.reverse else (1, -1, 0)
            wide = lax.pad(wide, start(op.kind, accum, wide), shift)
        wide = CUMULATIVE[op.kind](wide, axis=op.axis, reverse=op.reverse)
    return from_accumulator(wide, accum, ctx.result.dtype)


# Lowerings of the ops that shift and scale elements by the statistics of their axis.


LayerNorm = ops.normalization.LayerNorm


@TABLE.register(LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(op: LayerNorm, ctx: LoweringContext, x: Array, scale: Array, bias: Array) -> Array:
    """Take out the mean twice, then scale."""
    dtype = ctx.result.dtype
    if not x.size:
        return x
    wide, scale, bias = (widen(dtype, array) for array in (x, scale, bias))
    share, exponent = math.frexp(wide.shape[op.axis])
    power = np.array(math.ldexp(1.0, -exponent), wide.dtype)  # so that no sum overflows
    count = np.array(share, wide.dtype)
    others = [axis for axis in range(wide.ndim) if axis != op.axis]

    def mean(values: Array) -> Array:
        total = lowering.reduce(values * power, np.zeros((), values.dtype), lax.add, (op.axis,))
        return lowering.broadcast_in(total / count, values.shape, others)

    def along(vector: Array) -> Array:
        return lowering.broadcast_in(vector, wide.shape, (op.axis,))

    centred = wide - mean(wide)
    centred = centred - mean(centred)
    variance = mean(centred * centred)
    normal = centred / lax.sqrt(variance + np.array(op.epsilon, wide.dtype))
    return narrow(dtype, normal * along(scale) + along(bias))


# Lowerings of the ops that look at every position of a box that slides over a tensor.


window = ops.window


@TABLE.register(window.ReduceWindow, dtypes=NUMBERS)
def reduce_window(op: window.ReduceWindow, ctx: LoweringContext, x: Array) -> Array:
    """Combine the elements under each position of the window."""
    accum = op.accumulator(ctx.operands[0])
    wide = to_accumulator(x, ctx.operands[0].dtype, accum)
    initial = start(op.kind, accum, wide)
    if not ctx.result.size or not wide.size:
        total = lowering.full(ctx.result.shape, initial, wide.dtype)
    else:
        axes = op.axes()
        total = lowering.reduce_window(
            wide,
            initial,
            COMBINE[op.kind],
            [axis.size for axis in axes],
            strides=[axis.stride for axis in axes],
            padding=[(axis.low, axis.high) for axis in axes],
            dilation=[axis.dilation for axis in axes],
        )
    return from_accumulator(total, accum, ctx.result.dtype)


@TABLE.register(window.ExtractPatches, dtypes=dtypes.ALL)
def extract_patches(op: window.ExtractPatches, ctx: LoweringContext, x: Array) -> Array:
    """Put a strided slice for each position of the window side by side."""
    axes, positions = op.axes(), ctx.result.shape[1:-1]
    if not axes:
        return x
    value = padding_value(op.value, ctx.result.dtype, x)
    if not ctx.result.size:
        return lowering.zeros(ctx.result.shape, x.dtype)
    padded = lax.pad(x, value, [(0, 0, 0), *((a.low, a.high, 0) for a in axes), (0, 0, 0)])
    pieces: list[Array] = []
    for offsets in itertools.product(*(range(axis.size) for axis in axes)):
        starts = [offset * axis.dilation for offset, axis in zip(offsets, axes, strict=True)]
        ends = [
            first + (count - 1) * axis.stride + 1
            for first, count, axis in zip(starts, positions, axes, strict=True)
        ]
        strides = [axis.stride for axis in axes]
        pieces.append(
            lax.slice(padded, [0, *starts, 0], [x.shape[0], *ends, x.shape[-1]], [1, *strides, 1])
        )
    return lax.concatenate(pieces, x.ndim - 1)
