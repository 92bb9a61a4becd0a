"""Kernels of the ops that make a tensor from attributes alone."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import creation as ops
from gptrs_backend_ref.conversion import convert
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.Constant, dtypes=dtypes.ALL)
def constant(op: ops.Constant) -> np.ndarray:
    """Return the elements of the literal."""
    return op.value.array


@TABLE.register(ops.Iota, dtypes=dtypes.INTEGERS + dtypes.FLOATS)
def iota(op: ops.Iota) -> np.ndarray:
    """Return 0, 1, ... along the axis."""
    if 0 in op.shape:  # another axis may be too long to count
        return np.empty(op.shape, op.dtype.numpy)
    count = op.shape[op.axis]
    aligned = [count if axis == op.axis else 1 for axis in range(len(op.shape))]
    indices = convert(np.arange(count, dtype=np.int64), op.dtype)
    return np.broadcast_to(indices.reshape(aligned), op.shape)
