"""Primitives that put elements in order."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.tensor import Tensor, apply_many
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import sorting
from gptrs.ir.shapes import normalize_axis


def sort(
    operands: Sequence[Tensor], axis: int, descending: bool = False, stable: bool = True
) -> tuple[Tensor, ...]:
    """Return the operands, all in the order of the first along axis."""
    rank = operands[0].rank if operands else 0
    normal = normalize_axis(axis, rank, "`sort`")
    return apply_many(sorting.Sort(normal, descending, stable), *operands)


def top_k(
    x: Tensor, k: int, axis: int = 0, largest: bool = True, indices_dtype: DType = dtypes.si32
) -> tuple[Tensor, Tensor]:
    """Return the k largest (or least) elements along axis in their order, and their indices."""
    normal = normalize_axis(axis, x.rank, "`top_k`")
    values, indices = apply_many(sorting.TopK(k, normal, largest, indices_dtype), x)
    return values, indices
