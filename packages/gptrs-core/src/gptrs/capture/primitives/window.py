"""Primitives that look at every position of a sliding box.

Padding is given here as one `(low, high)` pair an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal, Scalar
from gptrs.ir.ops import window as ops

WindowKind = OneOf["sum", "prod", "max", "min"]
Padding = Sequence[tuple[int, int]]


def reduce_window(
    x: Tensor,
    kind: WindowKind,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding | None = None,
    dilation: Sequence[int] | None = None,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Return the elements under each position of the window combined; one entry an axis of x."""
    op = ops.ReduceWindow(
        kind,
        tuple(window),
        *_movement(len(window), strides, padding, dilation),
        accum_dtype,
        out_dtype,
    )
    return apply(op, x)


def extract_patches(
    x: Tensor,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding | None = None,
    dilation: Sequence[int] | None = None,
    value: complex | None = None,
) -> Tensor:
    """Gather the elements under each position; one entry a spatial axis of (N, .., C)."""
    op = ops.ExtractPatches(
        tuple(window),
        *_movement(len(window), strides, padding, dilation),
        None if value is None else Scalar(Literal.full(value, x.dtype)),
    )
    return apply(op, x)


def _movement(
    count: int,
    strides: Sequence[int] | None,
    padding: Padding | None,
    dilation: Sequence[int] | None,
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the three as attributes; None for what is the default, so that equal ops are equal."""
    sides = None if padding is None else [side for pair in padding for side in pair]
    return (
        _but_default(strides, (1,) * count),
        _but_default(sides, (0, 0) * count),
        _but_default(dilation, (1,) * count),
    )


def _but_default(values: Sequence[int] | None, default: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if values is None or tuple(values) == default else tuple(values)
