"""Cases of the reductions: every line combined by exact Python arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.reduction import Argmax, Argmin, Cumulative, Reduce
from gptrs_conformance.exact_values import (
    Index,
    absorbing_values,
    combined,
    converted,
    edge_operand,
    exact_but_complex,
    exact_operand,
    kinds_of,
    lines,
    plain,
    wide,
)
from gptrs_conformance.numerics import PRECISION, Tolerance, integer_range
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, integers, sample

ReduceKind: TypeAlias = Literal["sum", "prod", "max", "min", "and", "or"]

NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)
ORDERED = tuple(dtype for dtype in dtypes.ALL if not dtype.is_complex)

REDUCTIONS: tuple[tuple[str, Index, Index, bool], ...] = (
    ("last axis", (3, 5), (1,), False),
    ("first axis, kept", (5, 3), (0,), True),
    ("rank 0", (), (), False),
    ("no axes", (2, 3), (), True),
    ("all axes", (2, 3, 2), (0, 1, 2), False),
    ("one element", (1, 1), (0, 1), True),
    ("empty axis", (0, 3), (0,), False),
    ("empty result", (0, 3), (1,), False),
    ("outer axes of rank 5", (2, 3, 1, 2, 2), (0, 2, 4), False),
)
POSITIONS: tuple[tuple[str, Index, int, bool], ...] = (
    ("last axis", (5, 9), 1, False),
    ("first axis, kept", (7, 3), 0, True),
    ("vector", (11,), 0, False),
    ("one element", (1,), 0, True),
    ("empty result", (0, 3), 1, False),
    ("middle of rank 4", (2, 1, 6, 3), 2, False),
)
RUNS: tuple[tuple[str, Index, int], ...] = (
    ("last axis", (3, 5), 1),
    ("first axis", (5, 3), 0),
    ("one element", (1,), 0),
    ("empty axis", (0, 3), 0),
    ("empty lines", (3, 0), 0),
    ("middle of rank 4", (2, 1, 4, 3), 2),
)
ACCUMULATORS: tuple[tuple[DType | None, DType | None], ...] = (
    (dtypes.si64, None),
    (dtypes.ui4, dtypes.si64),
    (None, dtypes.ui4),
    (dtypes.ui64, dtypes.si8),
)
"""Integer types to accumulate in and to return."""


def reduced(op: Reduce, x: np.ndarray) -> np.ndarray:
    """Return what `reduce` must give, before floats are rounded to the result type."""
    dtype = dtypes.from_numpy(x.dtype)
    out = op.out_dtype or dtype
    kept = tuple(dim for axis, dim in enumerate(x.shape) if axis not in op.axes)
    result = np.zeros(kept, object)
    for position, values in lines(plain(x), op.axes):
        if dtype.is_bool:
            result[position] = all(values) if op.kind == "and" else any(values)
        else:
            result[position] = converted(combined(op.kind, values, op.accum_dtype or dtype), out)
    if op.keepdims:
        result = result.reshape([1 if n in op.axes else dim for n, dim in enumerate(x.shape)])
    return wide(result, out)


def _reduced(op: Reduce, x: np.ndarray, label: str) -> OpCase:
    tolerance = exact_but_complex(dtypes.from_numpy(x.dtype))
    return OpCase(op, (x,), (reduced(op, x),), tolerance, f"{label}, {op.kind}")


@rows(Reduce, dtypes=dtypes.ALL)
def reduce(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind on every shape in turn, identities, accumulators, results of other types, NaN."""
    del op_class
    numeric = () if dtype.is_bool else cast("tuple[ReduceKind, ...]", kinds_of(dtype))
    logical: tuple[ReduceKind, ...] = ("and", "or") if _has_bits(dtype) else ()
    kinds: tuple[ReduceKind, ...] = (*numeric, *logical)
    label, shape, axes, keepdims = REDUCTIONS[0]
    for kind in kinds:
        yield _reduced(Reduce(kind, axes, keepdims), exact_operand(dtype, shape, rng), label)
    turn = itertools.cycle(kinds)
    for label, shape, axes, keepdims in REDUCTIONS[1:]:
        x = exact_operand(dtype, shape, rng)
        yield _reduced(Reduce(next(turn), axes, keepdims), x, label)
    for kind in kinds:
        x = exact_operand(dtype, (2, 0), rng)
        yield _reduced(Reduce(kind, (1,)), x, "identity")
    if dtype.is_integer:
        low, high = integer_range(dtype)
        x = integers([high, high, low, low, 1], dtype)
        for accum, out in ACCUMULATORS:
            op = Reduce("sum", (0,), accum_dtype=accum, out_dtype=out)
            yield _reduced(op, x, f"accumulated in {accum}, as {out}")
        yield _reduced(Reduce("max", (0,), out_dtype=dtypes.si4), x, "as si4")
    elif dtype.is_float:
        yield from _reduced_floats(dtype)
    elif dtype.is_complex:
        op = Reduce("sum", (0,), accum_dtype=dtypes.cf64, out_dtype=dtypes.cf32)
        yield _reduced(op, exact_operand(dtype, (5,), rng), "accumulated in cf64, as cf32")


def _has_bits(dtype: DType) -> bool:
    return dtype.is_bool or dtype.is_integer


def _reduced_floats(dtype: DType) -> Iterator[OpCase]:
    x = as_float(
        np.array([[1.0, math.nan, 3.0], [math.inf, -1.0, 2.0], [-math.inf, 1.0, -2.0]]), dtype
    )
    for kind in ("sum", "max", "min"):
        yield _reduced(Reduce(kind, (1,)), x, "not finite")
    values = absorbing_values(dtype)
    if dtype.bits <= 16:
        yield _reduced(Reduce("sum", (0,)), values, "accumulated in f32")
        op = Reduce("sum", (0,), out_dtype=dtypes.f32)
        yield _reduced(op, values[:2], "not rounded to the operand type")
    if dtype is dtypes.f32:
        op = Reduce("sum", (0,), accum_dtype=dtypes.f64)
        yield _reduced(op, values, "accumulated in f64")
    if dtype.bits >= 32:
        # 2^17 is an infinity in f16, so that the total is one in any type.
        op = Reduce("sum", (0,), accum_dtype=dtypes.f16)
        infinite = np.array(math.inf)
        x = as_float(np.array([2.0**17, 1.0, -1.0]), dtype)
        yield OpCase(op, (x,), (infinite,), label="accumulated in f16")
    yield _reduced(Reduce("max", (0,), out_dtype=dtypes.f8e5m2), values, "as f8e5m2")
    yield _inexact_sum(dtype)


def _inexact_sum(dtype: DType) -> OpCase:
    """Against the exact sum, within what any order of adding up may be off."""
    x = sample(dtype, (3, 60))
    values = [[value.real for value in line] for _, line in lines(plain(x), (1,))]
    expected = np.array([math.fsum(line) for line in values])
    magnitude = np.array([math.fsum(map(abs, line)) for line in values])
    unit = 2.0 ** -PRECISION["f64" if dtype is dtypes.f64 else "f32"]
    tolerance = Tolerance(ulps=1 if dtype.bits <= 16 else 0, atol=60 * unit * magnitude)
    return OpCase(Reduce("sum", (1,)), (x,), (expected,), tolerance, "any numbers, sum")


@rows(Argmax, Argmin, dtypes=ORDERED)
def argmax_argmin(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every shape, indices of both types, ties, NaN, zeros of both signs."""
    largest = op_class is Argmax
    for number, (label, shape, axis, keepdims) in enumerate(POSITIONS):
        x = edge_operand(dtype, shape, rng)
        index_type = dtypes.si32 if number % 2 else dtypes.si64
        yield _position(largest, axis, keepdims, index_type, x, label)
    x = exact_operand(dtype, (6, 20), rng)
    yield _position(largest, 1, False, dtypes.si64, x, "numbers")
    x = np.zeros((2, 5), dtype.numpy)
    yield _position(largest, 1, False, dtypes.si64, x, "all tie")
    if dtype.is_float:
        lines_ = [[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0], [math.inf, math.nan, math.nan]]
        x = as_float(np.array([*lines_, [-math.inf, -1.0, -math.inf]]), dtype)
        yield _position(largest, 1, False, dtypes.si64, x, "zeros, NaN, infinities")


def _position(
    largest: bool, axis: int, keepdims: bool, index_type: DType, x: np.ndarray, label: str
) -> OpCase:
    result = np.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), np.int64)
    for position, values in lines(plain(x), (axis,)):
        result[position] = _first_extreme([value.real for value in values], largest)
    if keepdims:
        result = result.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    op = (Argmax if largest else Argmin)(axis, keepdims, index_type)
    return OpCase(op, (x,), (result,), label=f"{label}, {index_type}")


def _first_extreme(values: list[float], largest: bool) -> int:
    for index, value in enumerate(values):
        if math.isnan(value):
            return index
    return values.index(max(values) if largest else min(values))


def accumulated(op: Cumulative, x: np.ndarray) -> np.ndarray:
    """Return what `cumulative` must give, before floats are rounded to the result type."""
    dtype = dtypes.from_numpy(x.dtype)
    accum, out = op.accum_dtype or dtype, op.out_dtype or dtype
    result = np.zeros(x.shape, object)
    for position, values in lines(plain(x), (op.axis,)):
        for at in range(len(values)):
            if op.reverse:
                part = values[at + 1 if op.exclusive else at :]
            else:
                part = values[: at if op.exclusive else at + 1]
            total = converted(combined(op.kind, part, accum), out)
            result[(*position[: op.axis], at, *position[op.axis :])] = total
    return wide(result, out)


def _accumulated(op: Cumulative, x: np.ndarray, label: str) -> OpCase:
    tolerance = exact_but_complex(dtypes.from_numpy(x.dtype))
    way = f"{label}, {op.kind}, reverse {op.reverse}, exclusive {op.exclusive}"
    return OpCase(op, (x,), (accumulated(op, x),), tolerance, way)


@rows(Cumulative, dtypes=NUMBERS)
def cumulative(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind with every flag, the edge shapes, accumulators, results of other types, NaN."""
    del op_class
    kinds = kinds_of(dtype)
    label, shape, axis = RUNS[0]
    for kind, (reverse, exclusive) in itertools.product(
        kinds, ((False, False), (True, False), (False, True), (True, True))
    ):
        x = exact_operand(dtype, shape, rng)
        yield _accumulated(Cumulative(kind, axis, reverse, exclusive), x, label)
    for number, (label, shape, axis) in enumerate(RUNS[1:]):
        op = Cumulative(kinds[number % len(kinds)], axis, exclusive=bool(number % 2))
        yield _accumulated(op, exact_operand(dtype, shape, rng), label)
    if dtype.is_integer:
        low, high = integer_range(dtype)
        x = integers([high, high, low, low, 1], dtype)
        for accum, out in ACCUMULATORS:
            op = Cumulative("sum", 0, accum_dtype=accum, out_dtype=out)
            yield _accumulated(op, x, f"accumulated in {accum}, as {out}")
        op = Cumulative("min", 0, exclusive=True, out_dtype=dtypes.si4)
        yield _accumulated(op, x, "as si4")
    elif dtype.is_float:
        yield from _accumulated_floats(dtype)
    else:
        op = Cumulative("sum", 0, accum_dtype=dtypes.cf64, out_dtype=dtypes.cf32)
        yield _accumulated(op, exact_operand(dtype, (5,), rng), "accumulated in cf64, as cf32")


def _accumulated_floats(dtype: DType) -> Iterator[OpCase]:
    x = as_float(np.array([1.0, math.inf, 2.0, math.nan, 3.0, -math.inf, 2.0]), dtype)
    for kind in ("sum", "max", "min"):
        yield _accumulated(Cumulative(kind, 0), x, "not finite")
    values = absorbing_values(dtype)
    if dtype.bits <= 16:
        yield _accumulated(Cumulative("sum", 0), values, "accumulated in f32")
        op = Cumulative("sum", 0, out_dtype=dtypes.f32)
        yield _accumulated(op, values, "not rounded to the operand type")
    if dtype is dtypes.f32:
        op = Cumulative("sum", 0, accum_dtype=dtypes.f64)
        yield _accumulated(op, values, "accumulated in f64")
    yield _accumulated(Cumulative("max", 0, out_dtype=dtypes.f8e5m2), values, "as f8e5m2")
