"""Kernels of the ops that move elements without computing on them."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import layout as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.Reshape, dtypes=dtypes.ALL)
def reshape(op: ops.Reshape, x: np.ndarray) -> np.ndarray:
    """Return the same elements, in row-major order, in another shape."""
    return x.reshape(op.shape)


@TABLE.register(ops.Transpose, dtypes=dtypes.ALL)
def transpose(op: ops.Transpose, x: np.ndarray) -> np.ndarray:
    """Permute the axes."""
    return x.transpose(op.permutation)


@TABLE.register(ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcast_to(op: ops.BroadcastTo, x: np.ndarray) -> np.ndarray:
    """Repeat the elements along new axes and axes of size 1."""
    return np.broadcast_to(x, op.shape)


@TABLE.register(ops.Slice, dtypes=dtypes.ALL)
def slice_(op: ops.Slice, x: np.ndarray) -> np.ndarray:
    """Return `size` elements of each axis, from `start` on, a step apart."""
    # The end may be past the axis, where NumPy clips; `op.infer` has checked the reads.
    spans = zip(op.starts, op.sizes, op.steps(x.ndim), strict=True)
    return x[tuple(slice(start, start + size * step, step) for start, size, step in spans)]


@TABLE.register(ops.Concat, dtypes=dtypes.ALL)
def concat(op: ops.Concat, *parts: np.ndarray) -> np.ndarray:
    """Join the operands along the axis."""
    return np.concatenate(parts, axis=op.axis)


@TABLE.register(ops.Pad, dtypes=dtypes.ALL)
def pad(op: ops.Pad, x: np.ndarray) -> np.ndarray:
    """Copy the elements that are not trimmed to their places in a tensor of `value`."""
    shape = op.infer(TensorType.of(x)).shape
    result = np.zeros(shape, x.dtype)
    if op.value is not None:
        result[...] = op.value.array
    sources: list[slice] = []
    places: list[slice] = []
    for dim, size, low, between in zip(x.shape, shape, op.low, op.between(x.ndim), strict=True):
        step = between + 1
        # Element `i` goes to `low + i * step`: the first at or past 0, the first at or past `size`.
        first = max(-(low // step), 0)
        last = max(min(dim, -((low - size) // step)), first)
        place = low + first * step
        sources.append(slice(first, last))
        places.append(slice(place, place + (last - first) * step, step))
    result[tuple(places)] = x[tuple(sources)]
    return result


@TABLE.register(ops.Tile, dtypes=dtypes.ALL)
def tile(op: ops.Tile, x: np.ndarray) -> np.ndarray:
    """Repeat the whole tensor along each axis."""
    pairs = list(zip(op.repeats, x.shape, strict=True))
    split = x.reshape([size for dim in x.shape for size in (1, dim)])
    repeated = np.broadcast_to(split, [size for pair in pairs for size in pair])
    return repeated.reshape([repeats * dim for repeats, dim in pairs])


@TABLE.register(ops.Reverse, dtypes=dtypes.ALL)
def reverse(op: ops.Reverse, x: np.ndarray) -> np.ndarray:
    """Reverse the order of the elements along the axes."""
    return np.flip(x, op.axes)
