"""Primitives that multiply and sum over shared axes."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import contraction
from gptrs.ir.shapes import normalize_axis


def dot_general(
    lhs: Tensor,
    rhs: Tensor,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Sum of products over the contracted axes; `contract` and `batch` are (lhs axes, rhs axes)."""
    op = contraction.DotGeneral(
        contract_lhs=_axes(lhs, contract[0]),
        contract_rhs=_axes(rhs, contract[1]),
        batch_lhs=_axes(lhs, batch[0]),
        batch_rhs=_axes(rhs, batch[1]),
        accum_dtype=accum_dtype,
        out_dtype=out_dtype,
    )
    return apply(op, lhs, rhs)


def _axes(x: Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(normalize_axis(axis, x.rank, "`dot_general`") for axis in axes)
