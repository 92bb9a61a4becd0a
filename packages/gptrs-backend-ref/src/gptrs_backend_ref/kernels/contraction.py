"""Kernels of the ops that multiply and sum over shared axes of two tensors."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import contraction as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.numerics import from_accumulator, to_accumulator
from gptrs_backend_ref.table import TABLE

NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)


@TABLE.register(ops.DotGeneral, dtypes=NUMBERS)
def dot_general(op: ops.DotGeneral, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Multiply matrices, one pair for each batch position: (lhs, shared) x (shared, rhs)."""
    result, accum, m_axes, n_axes = _types_and_axes(op, lhs.dtype, lhs.shape, rhs.shape)
    a = _as_matrices(lhs, accum, op.batch_lhs, m_axes, op.contract_lhs)
    b = _as_matrices(rhs, accum, op.batch_rhs, op.contract_rhs, n_axes)
    product = np.matmul(a, b).reshape(result.shape)
    return from_accumulator(product, accum, result.dtype)


@lru_cache(maxsize=4096)
def _types_and_axes(
    op: ops.DotGeneral, stored: np.dtype[np.generic], lhs: tuple[int, ...], rhs: tuple[int, ...]
) -> tuple[TensorType, DType, tuple[int, ...], tuple[int, ...]]:
    """Return the types of result and accumulator, and the free axes of both operands."""
    dtype = dtypes.from_numpy(stored)
    left, right = TensorType(dtype, lhs), TensorType(dtype, rhs)
    return op.infer(left, right), op.accumulator(left), op.free_lhs(left), op.free_rhs(right)


def _as_matrices(
    x: np.ndarray,
    accum: DType,
    batch: tuple[int, ...],
    rows: tuple[int, ...],
    columns: tuple[int, ...],
) -> np.ndarray:
    """Return `x` in the accumulator type, each group of axes merged: (batch, rows, columns).

    The result is contiguous, so that the bits of a product depend only on the values.
    """
    shape = [math.prod(x.shape[axis] for axis in axes) for axes in (batch, rows, columns)]
    merged = to_accumulator(x, accum).transpose(batch + rows + columns).reshape(shape)
    return np.ascontiguousarray(merged)
