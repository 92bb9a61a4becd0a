"""Kernels of the ops that read or write at positions given by another tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import indexing as ops
from gptrs_backend_ref.kernels.reduction import COMBINE, identity
from gptrs_backend_ref.numerics import narrow, widen
from gptrs_backend_ref.table import TABLE

NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)


@TABLE.register(ops.Take, dtypes=dtypes.ALL)
def take(op: ops.Take, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the rows of these indices; ExecutionError if one is out of range."""
    return np.take(x, _checked(op, indices, x.shape[0], axis=0), axis=0)


@TABLE.register(ops.Gather, dtypes=dtypes.ALL)
def gather(op: ops.Gather, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return elements by index along the axis; ExecutionError if one is out of range."""
    positions = _checked(op, indices, x.shape[op.axis], op.axis)
    # `indices` may be shorter than `x` along the other axes.
    read = [slice(None) if axis == op.axis else slice(n) for axis, n in enumerate(indices.shape)]
    return along_axis(x[tuple(read)], positions, op.axis)


def along_axis(x: np.ndarray, positions: np.ndarray, axis: int) -> np.ndarray:
    """Return `x[.., positions[.., i, ..], ..]`; all dims except that of `axis` are equal."""
    if positions.size == 0:  # NumPy would index the other dims, which may be huge
        return np.empty(positions.shape, x.dtype)
    return np.take_along_axis(x, positions, axis)


@TABLE.register(ops.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slice(op: ops.DynamicSlice, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the block at the clamped starts."""
    return x[_block(x.shape, op.sizes, starts)]


@TABLE.register(ops.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_update_slice(
    op: ops.DynamicUpdateSlice, x: np.ndarray, update: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Return a copy with the block at the clamped starts replaced."""
    result = x.copy()
    result[_block(x.shape, update.shape, starts)] = update
    return result


@TABLE.register(ops.ScatterReduce, dtypes=dtypes.ALL)
def scatter_reduce(
    op: ops.ScatterReduce, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    """Return a copy with the updates combined into it, one after another."""
    along = _checked(op, indices, x.shape[op.axis], op.axis, does="writes")
    if updates.size == 0:
        return x
    targets: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
    targets[op.axis] = along
    if op.kind == "replace":
        return _replaced(x, tuple(targets), updates)
    total = np.array(widen(x), order="C", copy=True)
    # `ufunc.at`, since `total[targets] += updates` would apply only one of several updates to an
    # element.
    COMBINE[SCATTERED[op.kind]].at(total, tuple(targets), widen(updates))
    return narrow(total, dtypes.from_numpy(x.dtype))


SCATTERED = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""The reduction of each kind of `scatter_reduce` except `replace`."""


def _replaced(x: np.ndarray, targets: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    """Write the last update of each position; NumPy leaves the order of several undefined."""
    # `unique` returns first occurrences, so the reversed order yields the last update of each
    # element.
    numbers = np.ravel_multi_index(targets, x.shape).ravel()
    written, from_the_end = np.unique(numbers[::-1], return_index=True)
    result = np.array(x, order="C", copy=True)
    np.put(result, written, updates.reshape(-1)[::-1][from_the_end])
    return result


@TABLE.register(ops.SegmentReduce, dtypes=NUMBERS)
def segment_reduce(op: ops.SegmentReduce, x: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
    """Combine every row into the row of its segment."""
    dtype = dtypes.from_numpy(x.dtype)
    rows = _checked(op, segment_ids, op.num_segments, axis=0, does="writes")
    wide = widen(x)
    total = np.full((op.num_segments, *x.shape[1:]), identity(op.kind, dtype), wide.dtype)
    COMBINE[op.kind].at(total, rows, wide)
    return narrow(total, dtype)


def _checked(op: Op, indices: np.ndarray, size: int, axis: int, does: str = "reads") -> np.ndarray:
    """Return the indices as si64; ExecutionError if one is outside [0, size)."""
    wide = widen(indices)
    # Before the conversion to si64, in which large ui64 indices would become negative.
    outside = wide[(wide < 0) | (wide >= size)]
    if outside.size:
        raise ExecutionError(
            f"`{op.name}` {does} index {int(outside[0])} of axis {axis}, which has size {size}",
            hint=f"indices must lie in [0, {size})",
        )
    return wide.astype(np.int64)


def _block(shape: Sequence[int], sizes: Sequence[int], starts: np.ndarray) -> tuple[slice, ...]:
    """Return the slices of a block, each start clamped so that the block is inside `shape`."""
    wanted = [int(start) for start in widen(starts)]
    clamped = [
        min(max(start, 0), dim - size)
        for start, dim, size in zip(wanted, shape, sizes, strict=True)
    ]
    return tuple(slice(at, at + size) for at, size in zip(clamped, sizes, strict=True))
