"""Kernels of the ops that put elements in order."""

from __future__ import annotations

import numpy as np

from gptrs.ir.ops import sorting as ops
from gptrs_backend_ref.kernels.indexing import along_axis
from gptrs_backend_ref.kernels.reduction import ORDERED
from gptrs_backend_ref.numerics import widen
from gptrs_backend_ref.table import TABLE


@TABLE.register(ops.Sort, dtypes=ORDERED)
def sort(op: ops.Sort, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sort each operand by the order of the first; the sort is always stable."""
    order = ordering(operands[0], op.axis, op.descending)
    return tuple(along_axis(operand, order, op.axis) for operand in operands)


@TABLE.register(ops.TopK, dtypes=ORDERED)
def top_k(op: ops.TopK, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `k` elements of a stable sort, and their indices."""
    first = (slice(None),) * op.axis + (slice(op.k),)
    indices = ordering(x, op.axis, descending=op.largest)[first]
    return along_axis(x, indices, op.axis), indices.astype(op.indices_dtype.numpy)


def ordering(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the positions along `axis` in the order of the elements; ties ascend.

    NumPy, like PTIR, sorts NaN behind all numbers. A descending stable order is the reversed
    ascending stable order of the reversed elements.
    """
    wide = widen(x)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)
