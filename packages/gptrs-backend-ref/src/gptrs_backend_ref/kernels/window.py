"""Kernels of the ops that look at every position of a box that slides over a tensor."""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import window as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.kernels.reduction import COMBINE, identity
from gptrs_backend_ref.numerics import from_accumulator, to_accumulator
from gptrs_backend_ref.table import TABLE

NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)


@TABLE.register(ops.ReduceWindow, dtypes=NUMBERS)
def reduce_window(op: ops.ReduceWindow, x: np.ndarray) -> np.ndarray:
    """Reduce one axis after another: windows are products of intervals."""
    type_ = TensorType.of(x)
    result, accum = op.infer(type_), op.accumulator(type_)
    if result.size == 0:  # another axis than the empty one may be huge
        return np.zeros(result.shape, result.dtype.numpy)
    total = to_accumulator(x, accum)
    # Axes that shrink most come first, so that no intermediate is larger than input and result.
    growth = [
        out / dim if dim else math.inf for out, dim in zip(result.shape, x.shape, strict=True)
    ]
    for axis in sorted(range(x.ndim), key=growth.__getitem__):
        moving = np.moveaxis(total, axis, 0)
        combined = np.full(
            (result.shape[axis], *moving.shape[1:]), identity(op.kind, accum), total.dtype
        )
        for position in range(result.shape[axis]):
            seen = moving[_seen(op.axes()[axis], position, x.shape[axis])]
            if len(seen):
                combined[position] = COMBINE[op.kind].reduce(seen, axis=0, dtype=total.dtype)
        total = np.moveaxis(combined, 0, axis)
    return from_accumulator(total, accum, result.dtype)


def _seen(window: ops.AxisWindow, position: int, dim: int) -> slice:
    """Return the elements of an axis of size `dim` that the window covers at `position`."""
    start = position * window.stride - window.low
    stop = min(start + (window.size - 1) * window.dilation + 1, dim)
    # The first element that the window reads at or past 0; whole dilations are skipped.
    if start < 0:
        start %= window.dilation
    # A negative stop would count from the end of the axis.
    return slice(start, max(stop, 0), window.dilation)


@TABLE.register(ops.ExtractPatches, dtypes=dtypes.ALL)
def extract_patches(op: ops.ExtractPatches, x: np.ndarray) -> np.ndarray:
    """Gather every (position.., window position..) in one lookup, `value` where outside."""
    result = op.infer(TensorType.of(x))
    value = np.zeros((), x.dtype) if op.value is None else op.value.array
    if x.size == 0 or result.size == 0:
        return np.full(result.shape, value, x.dtype)
    spatial = x.ndim - 2
    sources: list[np.ndarray] = []
    inside = np.ones((1,) * (2 * spatial + 1), np.bool_)
    for axis, window in enumerate(op.axes()):
        positions = np.arange(result.shape[axis + 1]) * window.stride - window.low
        source = np.add.outer(positions, np.arange(window.size) * window.dilation)
        aligned = [1] * (2 * spatial)
        aligned[axis], aligned[spatial + axis] = source.shape
        source = source.reshape(aligned)
        dim = x.shape[axis + 1]
        inside = inside & ((source >= 0) & (source < dim))[..., np.newaxis]
        # Any valid index will do: elements outside are replaced by `value` below.
        sources.append(source.clip(0, dim - 1))
    return np.where(inside, x[(slice(None), *sources)], value).reshape(result.shape)
