"""Kernels of the ops that combine the elements along some axes."""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import normalization as normalization_ops
from gptrs.ir.ops import reduction as reduction_ops
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.numerics import (
    from_accumulator,
    narrow,
    to_accumulator,
    widen,
)
from gptrs_backend_ref.table import TABLE

ORDERED = tuple(dtype for dtype in dtypes.ALL if not dtype.is_complex)
NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)

F8E4M3_GREATEST = 448.0
"""The greatest value of f8e4m3, the only float type without infinities."""

COMBINE: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


@TABLE.register(reduction_ops.Reduce, dtypes=dtypes.ALL)
def reduce(op: reduction_ops.Reduce, x: np.ndarray) -> np.ndarray:
    """Reduce the axes, merged into one contiguous last axis, where NumPy adds pairwise."""
    type_ = TensorType.of(x)
    result, accum = op.infer(type_), op.accumulator(type_)
    # NumPy sums pairwise (error O(log n)) only along a contiguous axis; over others it adds row by
    # row (error O(n)).
    kept = [axis for axis in range(x.ndim) if axis not in op.axes]
    rows = [math.prod(x.shape[axis] for axis in axes) for axes in (kept, op.axes)]
    lines = x.transpose([*kept, *op.axes]).reshape(rows)
    wide = np.ascontiguousarray(to_accumulator(lines, accum))  # views of columns are not
    if not op.axes:
        total = wide  # a sum would turn -0.0 into 0.0
    elif wide.shape[1] == 0:
        total = np.full(wide.shape[0], identity(op.kind, accum), wide.dtype)
    else:
        total = COMBINE[op.kind].reduce(wide, axis=1, dtype=wide.dtype)
    return from_accumulator(total.reshape(result.shape), accum, result.dtype)


def identity(kind: str, dtype: DType) -> complex:
    """Return the result of a reduction of `kind` over no elements."""
    if kind in ("sum", "or"):
        return 0
    if kind == "prod":
        return 1
    if kind == "and":
        return dtype.limits[1] if dtype.kind == "unsigned" else -1
    least, greatest = limits(dtype)
    return least if kind == "max" else greatest


def limits(dtype: DType) -> tuple[float, float]:
    """Return the least and the greatest value of a real type, infinities if it has them."""
    if dtype.is_integer:
        return dtype.limits
    greatest = F8E4M3_GREATEST if dtype is dtypes.f8e4m3 else math.inf
    return -greatest, greatest


@TABLE.register(reduction_ops.Argmax, dtypes=ORDERED)
def argmax(op: reduction_ops.Argmax, x: np.ndarray) -> np.ndarray:
    """Return the position of the first NaN, else of the first of the largest."""
    return np.argmax(widen(x), axis=op.axis, keepdims=op.keepdims).astype(op.dtype.numpy)


@TABLE.register(reduction_ops.Argmin, dtypes=ORDERED)
def argmin(op: reduction_ops.Argmin, x: np.ndarray) -> np.ndarray:
    """Return the position of the first NaN, else of the first of the least."""
    return np.argmin(widen(x), axis=op.axis, keepdims=op.keepdims).astype(op.dtype.numpy)


@TABLE.register(reduction_ops.Cumulative, dtypes=NUMBERS)
def cumulative(op: reduction_ops.Cumulative, x: np.ndarray) -> np.ndarray:
    """Return the totals up to each element along the axis."""
    type_ = TensorType.of(x)
    result, accum = op.infer(type_), op.accumulator(type_)
    if accum is dtypes.f32 and op.kind in ("sum", "prod"):
        accum = dtypes.f64  # as in torch: a total in f32 loses all that is small beside it
    along = np.moveaxis(to_accumulator(x, accum), op.axis, 0)
    ahead = along[::-1] if op.reverse else along
    total = COMBINE[op.kind].accumulate(ahead, axis=0, dtype=ahead.dtype)
    if op.exclusive and len(total):
        start = np.full((1, *total.shape[1:]), identity(op.kind, accum), total.dtype)
        total = np.concatenate([start, total[:-1]])
    ordered = total[::-1] if op.reverse else total
    return from_accumulator(np.moveaxis(ordered, 0, op.axis), accum, result.dtype)


# Kernels of the ops that shift and scale the elements along an axis by their own statistics.


@TABLE.register(normalization_ops.LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(
    op: normalization_ops.LayerNorm, x: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Take out the mean twice, then scale; the axis is last, where NumPy adds pairwise."""
    apart = np.ascontiguousarray(np.moveaxis(widen(x), op.axis, -1))
    if apart.size == 0:
        return np.zeros(x.shape, x.dtype)
    # The second mean is the rounding error of the first, which dominates where elements hardly vary
    # far from 0 (PTIR, `layer_norm`).
    for _ in range(2):
        apart = apart - _mean(apart)
    normal = apart / np.sqrt(_mean(np.square(apart)) + apart.dtype.type(op.epsilon))
    result = normal * widen(scale) + widen(bias)
    return narrow(np.moveaxis(result, -1, op.axis), dtypes.from_numpy(x.dtype))


def _mean(rows: np.ndarray) -> np.ndarray:
    """Return the means of rows, scaled by a power of two so that no sum overflows."""
    # n = share * 2^exponent: dividing by the power of two first is exact, so that no sum overflows
    # whose mean does not.
    share, exponent = math.frexp(rows.shape[-1])
    scale, count = (rows.dtype.type(number) for number in (math.ldexp(1.0, -exponent), share))
    return (rows * scale).sum(axis=-1, keepdims=True) / count
