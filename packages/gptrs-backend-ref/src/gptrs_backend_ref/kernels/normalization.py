"""Kernels of the ops that shift and scale the elements along an axis by their own statistics."""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.ops import normalization as ops
from gptrs_backend_ref.numerics import narrow, widen
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(op: ops.LayerNorm, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Take out the mean twice, then scale; the axis is last, where NumPy adds pairwise."""
    apart = np.ascontiguousarray(np.moveaxis(widen(x), op.axis, -1))
    if apart.size == 0:
        return np.zeros(x.shape, x.dtype)
    for _ in range(2):
        apart = apart - _mean(apart)
    normal = apart / np.sqrt(_mean(np.square(apart)) + apart.dtype.type(op.epsilon))
    result = normal * widen(scale) + widen(bias)
    return narrow(np.moveaxis(result, -1, op.axis), dtypes.from_numpy(x.dtype))


def _mean(rows: np.ndarray) -> np.ndarray:
    """Return the means of rows, scaled by a power of two so that no sum overflows."""
    share, exponent = math.frexp(rows.shape[-1])
    scale, count = (rows.dtype.type(number) for number in (math.ldexp(1.0, -exponent), share))
    return (rows * scale).sum(axis=-1, keepdims=True) / count
