"""Kernels of the ops that move elements without computing on them."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import layout as ops
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.Reshape, dtypes=dtypes.ALL)
def reshape(op: ops.Reshape, x: np.ndarray) -> np.ndarray:
    """The same elements in row-major order."""
    return x.reshape(op.shape)


@TABLE.register(ops.Transpose, dtypes=dtypes.ALL)
def transpose(op: ops.Transpose, x: np.ndarray) -> np.ndarray:
    """The axes in another order."""
    return x.transpose(op.permutation)


@TABLE.register(ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcast_to(op: ops.BroadcastTo, x: np.ndarray) -> np.ndarray:
    """The elements repeated."""
    return np.broadcast_to(x, op.shape)


@TABLE.register(ops.Slice, dtypes=dtypes.ALL)
def slice_(op: ops.Slice, x: np.ndarray) -> np.ndarray:
    """Every `stride`-th element from `start` on."""
    # A slice of NumPy may end past the axis: the checks of the op keep the reads inside.
    spans = zip(op.starts, op.sizes, op.steps(x.ndim), strict=True)
    return x[tuple(slice(start, start + size * step, step) for start, size, step in spans)]


@TABLE.register(ops.Concat, dtypes=dtypes.ALL)
def concat(op: ops.Concat, *parts: np.ndarray) -> np.ndarray:
    """The operands one after another."""
    return np.concatenate(parts, axis=op.axis)
