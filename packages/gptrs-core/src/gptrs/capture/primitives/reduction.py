"""Primitives that combine the elements along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import reduction
from gptrs.ir.shapes import normalize_axes, normalize_axis

ReduceKind = OneOf["sum", "prod", "max", "min", "and", "or"]
CumulativeKind = OneOf["sum", "prod", "max", "min"]


def reduce(
    x: Tensor,
    kind: ReduceKind,
    axes: Sequence[int],
    keepdims: bool = False,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """x combined over axes."""
    normal = normalize_axes(axes, x.rank, "`reduce`")
    return apply(reduction.Reduce(kind, normal, keepdims, accum_dtype, out_dtype), x)


def argmax(x: Tensor, axis: int, keepdims: bool = False, dtype: DType = dtypes.si64) -> Tensor:
    """Index of the first largest element along axis."""
    return apply(reduction.Argmax(normalize_axis(axis, x.rank, "`argmax`"), keepdims, dtype), x)


def argmin(x: Tensor, axis: int, keepdims: bool = False, dtype: DType = dtypes.si64) -> Tensor:
    """Index of the first least element along axis."""
    return apply(reduction.Argmin(normalize_axis(axis, x.rank, "`argmin`"), keepdims, dtype), x)


def cumulative(
    x: Tensor,
    kind: CumulativeKind,
    axis: int,
    reverse: bool = False,
    exclusive: bool = False,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """x combined along axis up to each element."""
    normal = normalize_axis(axis, x.rank, "`cumulative`")
    op = reduction.Cumulative(kind, normal, reverse, exclusive, accum_dtype, out_dtype)
    return apply(op, x)
