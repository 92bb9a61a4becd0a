"""Kernels of the ops that shift and scale the elements along an axis by their own statistics."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import normalization as ops
from gptrs_backend_ref.numerics import narrow, widen
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(op: ops.LayerNorm, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Normalize in two passes, mean then variance; the axis is last, where NumPy adds pairwise."""
    rows = np.ascontiguousarray(np.moveaxis(widen(x), op.axis, -1))
    if rows.size == 0:
        return np.zeros(x.shape, x.dtype)
    centred = rows - rows.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(variance + rows.dtype.type(op.epsilon))
    result = normal * widen(scale) + widen(bias)
    return narrow(np.moveaxis(result, -1, op.axis), dtypes.from_numpy(x.dtype))
