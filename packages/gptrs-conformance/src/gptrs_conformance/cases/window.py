"""Cases of the window ops: each window gathered element by element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from gptrs.ir import dtypes, literal_text
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.window import AxisWindow, ExtractPatches, ReduceWindow
from gptrs_conformance.exact_values import (
    combined,
    converted,
    exact_operand,
    kinds_of,
    plain,
    wide,
)
from gptrs_conformance.numerics import PRECISION, integer_range
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, integers, sample

Index: TypeAlias = tuple[int, ...]
Geometry: TypeAlias = tuple[Index, Index | None, Index | None, Index | None]
"""Window, strides, padding, dilation."""

REDUCTIONS: tuple[tuple[str, Index, Geometry], ...] = (
    ("one axis", (5,), ((3,), None, None, None)),
    ("all attributes", (5, 6), ((2, 3), (2, 1), (1, 0, 0, 2), (1, 2))),
    ("rank 0", (), ((), None, None, None)),
    ("empty operand", (0, 3), ((1, 2), None, None, None)),
    ("window too large", (2, 3), ((5, 1), None, None, None)),
    ("padding alone", (0, 2), ((2, 1), None, (2, 1, 0, 1), None)),
    ("windows that meet nothing", (3,), ((2,), (3,), (4, 4), (2,))),
    ("rank 4", (1, 3, 4, 2), ((1, 2, 2, 1), (1, 1, 2, 1), None, None)),
)
PATCHES: tuple[tuple[str, Index, Geometry], ...] = (
    ("one spatial axis", (2, 5, 3), ((3,), None, None, None)),
    ("all attributes", (2, 5, 4, 3), ((2, 3), (2, 1), (1, 0, 0, 2), (2, 1))),
    ("no spatial axes", (2, 3), ((), None, None, None)),
    ("three spatial axes", (1, 2, 3, 2, 2), ((1, 2, 2), None, (0, 0, 1, 1, 0, 0), None)),
    ("no channels", (1, 3, 0), ((2,), None, None, None)),
    ("no batch", (0, 3, 2), ((2,), None, (1, 1), None)),
    ("padding alone", (1, 0, 2), ((2,), None, (2, 1), None)),
    ("window too large", (1, 2, 2), ((4,), None, None, None)),
)


def positions(axis: AxisWindow, dim: int) -> list[int]:
    """Return the start positions of the window on the padded axis: every stride where it fits."""
    end = axis.low + dim + axis.high
    reach = (axis.size - 1) * axis.dilation
    return [start for start in range(0, end, axis.stride) if start + reach < end]


def windows(
    axes: tuple[AxisWindow, ...], dims: Index
) -> Iterator[tuple[Index, list[Index | None]]]:
    """Each position with the values that the window reads, in row-major order: None outside."""
    starts = [positions(axis, dim) for axis, dim in zip(axes, dims, strict=True)]
    for position in itertools.product(*(range(len(listed)) for listed in starts)):
        read: list[Index | None] = []
        for offset in itertools.product(*(range(axis.size) for axis in axes)):
            source = tuple(
                listed[at] + k * axis.dilation - axis.low
                for listed, at, k, axis in zip(starts, position, offset, axes, strict=True)
            )
            inside = all(0 <= i < dim for i, dim in zip(source, dims, strict=True))
            read.append(source if inside else None)
        yield position, read


def expected_reduction(op: ReduceWindow, x: np.ndarray) -> np.ndarray:
    """Return what `reduce_window` must give, before floats are rounded to the result type."""
    dtype = dtypes.from_numpy(x.dtype)
    accum, out = op.accum_dtype or dtype, op.out_dtype or dtype
    values = plain(x)
    shape = tuple(len(positions(*pair)) for pair in zip(op.axes(), x.shape, strict=True))
    result = np.zeros(shape, object)
    for position, read in windows(op.axes(), x.shape):
        total = combined(op.kind, [values[source] for source in read if source is not None], accum)
        result[position] = converted(total, out)
    return wide(result, out)


def expected_patches(op: ExtractPatches, x: np.ndarray) -> np.ndarray:
    """Return what `extract_patches` must give."""
    dtype = dtypes.from_numpy(x.dtype)
    values = plain(x)
    value = 0 if op.value is None else plain(op.value.array)[()]
    dims = x.shape[1:-1]
    shape = tuple(len(positions(*pair)) for pair in zip(op.axes(), dims, strict=True))
    channels = x.shape[-1]
    result = np.full((x.shape[0], *shape, math.prod(op.window) * channels), value, object)
    for position, read in windows(op.axes(), dims):
        for number, source in enumerate(read):
            if source is not None:
                last = slice(number * channels, (number + 1) * channels)
                result[(slice(None), *position, last)] = values[(slice(None), *source)]
    return wide(result, dtype)


@rows(ReduceWindow, dtypes=tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool))
def reduce_window(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind with every attribute, the edge shapes, accumulators, results of other types."""
    del op_class
    kinds = kinds_of(dtype)
    label, shape, geometry = REDUCTIONS[1]
    for kind in kinds:
        x = exact_operand(dtype, shape, rng)
        yield _reduction(ReduceWindow(kind, *geometry), x, f"{label}, {kind}")
    for number, (label, shape, geometry) in enumerate(REDUCTIONS[:1] + REDUCTIONS[2:]):
        kind = kinds[number % len(kinds)]
        yield _reduction(ReduceWindow(kind, *geometry), exact_operand(dtype, shape, rng), label)
    if dtype.is_integer:
        yield from _integer_accumulators(dtype)
    if dtype.is_float:
        yield from _float_accumulators(dtype)
        x = as_float(np.array([1, np.nan, -1, 2, np.inf, 3, -np.inf, 2]), dtype)
        for kind in ("max", "min"):
            yield _reduction(ReduceWindow(kind, (2,), padding=(1, 1)), x, f"not finite, {kind}")


def _integer_accumulators(dtype: DType) -> Iterator[OpCase]:
    low, high = integer_range(dtype)
    x = integers([high, high, low, low, 1], dtype)
    for accum, out in ((dtypes.si64, None), (dtypes.ui4, dtypes.si64), (None, dtypes.ui4)):
        op = ReduceWindow("sum", (2,), accum_dtype=accum, out_dtype=out)
        yield _reduction(op, x, f"accumulated in {accum}, as {out}")
    yield _reduction(ReduceWindow("max", (2,), out_dtype=dtypes.si4), x, "max as si4")


def _float_accumulators(dtype: DType) -> Iterator[OpCase]:
    # A running total of the operand type loses each 1 after the large number, not their sum.
    large = 2.0 ** PRECISION[dtype.name]
    x = as_float(np.array([1.0, large, 1.0, 1.0, 1.0, 1.0, 1.0]), dtype)
    if dtype.bits <= 16:
        yield _reduction(ReduceWindow("sum", (6,)), x, "accumulated in f32")
        op = ReduceWindow("sum", (2,), out_dtype=dtypes.f32)
        yield _reduction(op, x, "not rounded to the operand type")
    if dtype is dtypes.f32:
        op = ReduceWindow("sum", (6,), accum_dtype=dtypes.f64)
        yield _reduction(op, x, "accumulated in f64")
    yield _reduction(ReduceWindow("max", (2,), out_dtype=dtypes.f8e5m2), x, "max as f8e5m2")


def _reduction(op: ReduceWindow, x: np.ndarray, label: str) -> OpCase:
    return OpCase(op, (x,), (expected_reduction(op, x),), label=label)


@rows(ExtractPatches, dtypes=dtypes.ALL)
def extract_patches(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every attribute, from no spatial axis to three, and shapes without elements."""
    del op_class, rng
    for number, (label, shape, geometry) in enumerate(PATCHES):
        op = ExtractPatches(*geometry, _fill(dtype) if number % 2 else None)
        x = sample(dtype, shape, seed=number)
        yield OpCase(op, (x,), (expected_patches(op, x),), label=label)


def _fill(dtype: DType) -> literal_text.Scalar:
    value = 1 if dtype.is_bool else -2.5 if dtype.is_float else 7
    return literal_text.Scalar(literal_text.Literal.full(value, dtype))
