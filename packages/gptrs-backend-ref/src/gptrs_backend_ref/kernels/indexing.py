"""Kernels of the ops that read or write at positions given by another tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import indexing as ops
from gptrs_backend_ref.numerics import widen
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.Take, dtypes=dtypes.ALL)
def take(op: ops.Take, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Rows by number."""
    return np.take(x, _checked(op, indices, x.shape[0], axis=0), axis=0)


@TABLE.register(ops.Gather, dtypes=dtypes.ALL)
def gather(op: ops.Gather, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Elements by index along the axis."""
    positions = _checked(op, indices, x.shape[op.axis], op.axis)
    # Of the other axes only as much as `indices` has takes part.
    read = [slice(None) if axis == op.axis else slice(n) for axis, n in enumerate(indices.shape)]
    return np.take_along_axis(x[tuple(read)], positions, axis=op.axis)


@TABLE.register(ops.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slice(op: ops.DynamicSlice, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The block at the clamped starts."""
    return x[_block(x.shape, op.sizes, starts)]


@TABLE.register(ops.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_update_slice(
    op: ops.DynamicUpdateSlice, x: np.ndarray, update: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """A copy with the block at the clamped starts replaced."""
    result = x.copy()
    result[_block(x.shape, update.shape, starts)] = update
    return result


def _checked(op: Op, indices: np.ndarray, size: int, axis: int) -> np.ndarray:
    """The indices as si64; ExecutionError if one is outside [0, size)."""
    wide = widen(indices)
    outside = wide[(wide < 0) | (wide >= size)]
    if outside.size:
        raise ExecutionError(
            f"`{op.name}` reads index {int(outside[0])} of axis {axis}, which has size {size}",
            hint=f"indices must lie in [0, {size})",
        )
    return wide.astype(np.int64)


def _block(shape: Sequence[int], sizes: Sequence[int], starts: np.ndarray) -> tuple[slice, ...]:
    """The slices of a block of `sizes`, each start clamped so that the block is inside `shape`."""
    wanted = [int(start) for start in widen(starts)]
    clamped = [
        min(max(start, 0), dim - size)
        for start, dim, size in zip(wanted, shape, sizes, strict=True)
    ]
    return tuple(slice(at, at + size) for at, size in zip(clamped, sizes, strict=True))
