"""Cases of `dot_general`: every arrangement of axes, summed one product after another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import prod

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.sorting import Sort, TopK
from gptrs_conformance.exact_values import Index, edge_operand, exact_operand, lines, plain, wide
from gptrs_conformance.numerics import PRECISION, Tolerance, integer_range, wrapped
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, next_seed, sample

ARRANGEMENTS: tuple[tuple[str, DotGeneral, tuple[int, ...], tuple[int, ...]], ...] = (
    ("matrices", DotGeneral((1,), (0,)), (3, 5), (5, 4)),
    ("vectors", DotGeneral((0,), (0,)), (7,), (7,)),
    ("second transposed", DotGeneral((1,), (1,)), (2, 9), (3, 9)),
    ("first transposed", DotGeneral((0,), (0,)), (5, 3), (5, 4)),
    ("one row", DotGeneral((1,), (0,)), (1, 33), (33, 5)),
    ("a batch", DotGeneral((2,), (1,), (0,), (0,)), (2, 3, 4), (2, 4, 5)),
    ("two batch axes crossed", DotGeneral((3,), (2,), (0, 1), (1, 0)), (2, 3, 2, 4), (3, 2, 4, 2)),
    ("two contracted crossed", DotGeneral((0, 2), (2, 1)), (2, 3, 4), (5, 4, 2)),
    ("batch inside", DotGeneral((0,), (2,), (2,), (1,)), (4, 3, 2), (5, 2, 4)),
    ("outer product", DotGeneral((), ()), (3,), (4,)),
    ("scalars", DotGeneral((), ()), (), ()),
    ("nothing to sum", DotGeneral((1,), (0,)), (3, 0), (0, 4)),
    ("nothing to sum between axes", DotGeneral((1,), (1,)), (3, 0, 4), (5, 0)),
    ("nothing to sum on either side", DotGeneral((1,), (1,)), (3, 0, 4), (2, 0, 5)),
    ("nothing to sum in a batch", DotGeneral((2,), (2,), (0,), (0,)), (2, 3, 0, 4), (2, 5, 0)),
    ("no rows", DotGeneral((1,), (0,)), (0, 5), (5, 4)),
    ("an empty batch", DotGeneral((2,), (1,), (0,), (0,)), (0, 3, 4), (0, 4, 5)),
)
NUMBERS = (*dtypes.INTEGERS, *dtypes.FLOATS, dtypes.cf32, dtypes.cf64)


@rows(DotGeneral, dtypes=NUMBERS)
def dot_general(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every arrangement, then the accumulate and output types."""
    for label, op, left, right in ARRANGEMENTS:
        x, y = sample(dtype, left, next_seed(rng)), sample(dtype, right, 3)
        yield _case(op, x, y, label)
    yield from _typed(dtype, rng)


def _typed(dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Accumulate and output types of the same kind; the values distinguish them from defaults."""
    plain = DotGeneral((1,), (0,))
    if dtype.is_integer:
        ones = np.ones((1, 40), dtype.numpy)
        top = np.full((40, 1), integer_range(dtype)[1]).astype(dtype.numpy)
        wider = dtypes.si64 if dtype.kind == "signed" else dtypes.ui64
        yield _case(plain, ones, top, "wraps")
        yield _case(replace(plain, accum_dtype=wider), ones, top, "wide accumulator saturates")
        widened = replace(plain, accum_dtype=wider, out_dtype=wider)
        yield _case(widened, ones, top, "wide result")
    elif dtype.is_float:
        x, y = sample(dtype, (2, 8), next_seed(rng)), sample(dtype, (8, 2), 5)
        for out in (dtypes.f16, dtypes.f32, dtypes.f64):
            yield _case(replace(plain, out_dtype=out), x, y, f"out {out}")
        # 2^-20 added to 1 is lost in f32 only after some steps, in f64 never.
        small = np.full((1, 64), 2.0**-5).astype(dtype.numpy)
        column = np.full((64, 1), 2.0**-5).astype(dtype.numpy)
        column[0] = 2.0**7
        accumulated = replace(plain, accum_dtype=dtypes.f64, out_dtype=dtypes.f64)
        yield _case(accumulated, small, column, "accum f64")
        if dtype is dtypes.f32:
            tiny = np.array([[2.0**13, 1.0, -(2.0**13)]], np.float32)
            large = np.array([[2.0**13], [2.0**-3], [2.0**13]], np.float32)
            yield _case(accumulated, tiny, large, "accum f64 keeps what f32 loses")


def _case(op: DotGeneral, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    total, magnitude = _summed(op, x, y)
    out = op.out_dtype or dtype
    if dtype.is_integer:
        accum = op.accum_dtype or dtype
        low, high = integer_range(out)
        values = [min(max(wrapped(value, accum), low), high) for value in total.ravel().tolist()]
        expected = np.empty(len(values), object)
        expected[:] = values
        return OpCase(op, (x, y), (expected.reshape(total.shape),), label=label)
    kind = np.complex128 if dtype.is_complex else np.float64
    unit = 2.0**-22 if _adds_in_f32(op, dtype) else 2.0**-50
    if out.is_float and out.bits <= 16:
        unit += 2.0 ** (1 - PRECISION[out.name])
    tolerance = Tolerance.close(0.0, np.asarray(unit * magnitude + _least(out), np.float64))
    return OpCase(op, (x, y), (total.astype(kind),), tolerance, label)


def _adds_in_f32(op: DotGeneral, dtype: DType) -> bool:
    accum = op.accum_dtype or dtype.accumulator
    return accum in (dtypes.f32, dtypes.cf32)


def _least(out: DType) -> float:
    """Return the absolute error allowed near zero, where the type has few values."""
    return {"f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-24}.get(out.name, 0.0)


def _summed(op: DotGeneral, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of products, and of their magnitudes, over Python numbers."""
    free_x = [a for a in range(x.ndim) if a not in op.batch_lhs + op.contract_lhs]
    free_y = [a for a in range(y.ndim) if a not in op.batch_rhs + op.contract_rhs]
    left = plain(x).transpose(*op.batch_lhs, *free_x, *op.contract_lhs)
    right = plain(y).transpose(*op.batch_rhs, *free_y, *op.contract_rhs)
    batch = tuple(x.shape[a] for a in op.batch_lhs)
    rows_, columns = (tuple(z.shape[a] for a in axes) for z, axes in ((x, free_x), (y, free_y)))
    terms = prod(x.shape[a] for a in op.contract_lhs)
    left = left.reshape(prod(batch), prod(rows_), terms)
    right = right.reshape(prod(batch), prod(columns), terms)
    total = np.zeros((prod(batch), prod(rows_), prod(columns)), object)
    magnitude = np.zeros(total.shape)
    for b, m, n in np.ndindex(*total.shape):
        products = [p * q for p, q in zip(left[b, m], right[b, n], strict=True)]
        total[b, m, n] = sum(products)
        magnitude[b, m, n] = sum(abs(complex(product)) for product in products)
    shape = (*batch, *rows_, *columns)
    return total.reshape(shape), magnitude.reshape(shape)


# Cases of the ops that put elements in order: each line sorted by Python, which is stable.


ORDERED = tuple(dtype for dtype in dtypes.ALL if not dtype.is_complex)

SHAPES: tuple[tuple[str, Index, int], ...] = (
    ("vector", (19,), 0),
    ("last axis", (3, 17), 1),
    ("first axis", (13, 4), 0),
    ("middle of rank 4", (2, 1, 9, 3), 2),
    ("one element a line", (4, 1), 1),
    ("empty lines", (0, 3), 0),
    ("no lines", (5, 0), 0),
)
TOP_K: tuple[tuple[str, Index, int, int], ...] = (
    ("vector", (19,), 5, 0),
    ("last axis", (3, 17), 4, 1),
    ("first axis", (13, 4), 1, 0),
    ("the whole middle axis of rank 4", (2, 1, 9, 3), 9, 2),
    ("k of 0", (4, 3), 0, 1),
    ("empty lines", (2, 0), 0, 1),
    ("no lines", (5, 0), 2, 0),
)


def order(values: list[float], descending: bool) -> list[int]:
    """The positions in the order of the values, NaN above all else; equal ones ascend."""
    return sorted(
        range(len(values)),
        key=lambda at: (math.isnan(values[at]), 0 if math.isnan(values[at]) else values[at]),
        reverse=descending,
    )


def orders(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The positions along `axis` in the order of each line."""
    result = np.zeros(x.shape, np.int64)
    for position, values in lines(plain(x), (axis,)):
        span = (*position[:axis], slice(None), *position[axis:])
        result[span] = order([value.real for value in values], descending)
    return result


def taken(x: np.ndarray, positions: np.ndarray, axis: int) -> np.ndarray:
    """The elements of `x` at these positions of each line, as an expected value."""
    values = plain(x)
    result = np.zeros(positions.shape, object)
    for position in np.ndindex(*positions.shape):
        result[position] = values[
            (*position[:axis], int(positions[position]), *position[axis + 1 :])
        ]
    return wide(result, dtypes.from_numpy(x.dtype))


@rows(Sort, dtypes=ORDERED)
def sort(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Both directions on every shape, with other operands of any type, stable and not."""
    del op_class
    for number, (label, shape, axis) in enumerate(SHAPES):
        descending = bool(number % 2)
        x = edge_operand(dtype, shape, rng)
        yield _sorted(Sort(axis, descending), (x,), f"{label}, descending {descending}")
    for descending in (False, True):
        x = edge_operand(dtype, (2, 31), rng)
        numbers = np.asarray(np.indices(x.shape)[1])
        others = (numbers.astype(np.int32), exact_operand(dtypes.cf32, x.shape, rng))
        label = f"other operands, descending {descending}"
        yield _sorted(Sort(1, descending), (x, *others, x), label)
        x = exact_operand(dtype, (29,), rng)  # with nothing that is equal but not the same bits
        yield _sorted(Sort(0, descending, stable=False), (x,), f"unstable, descending {descending}")
    if dtype.is_float:
        x = equal_but_not_the_same(dtype)
        for descending in (False, True):
            operands = (x, np.arange(len(x)))
            label = f"zeros and NaN of both signs, descending {descending}"
            yield _sorted(Sort(0, descending), operands, label)


def equal_but_not_the_same(dtype: DType) -> np.ndarray:
    """Zeros and NaN of both signs between other numbers."""
    x = as_float(np.array([0.0, math.nan, 1.0, 0.0, -1.0, math.nan, 0.0, math.nan]), dtype)
    return np.where(np.arange(len(x)) % 2 == 1, -x, x)


def _sorted(op: Sort, operands: tuple[np.ndarray, ...], label: str) -> OpCase:
    positions = orders(operands[0], op.axis, op.descending)
    expected = tuple(taken(operand, positions, op.axis) for operand in operands)
    return OpCase(op, operands, expected, label=label)


@rows(TopK, dtypes=ORDERED)
def top_k(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """The largest and the least on every shape, indices of both types, ties and NaN."""
    del op_class
    for number, (label, shape, k, axis) in enumerate(TOP_K):
        largest = not number % 2
        indices_dtype = dtypes.si32 if number % 3 == 1 else dtypes.si64
        x = edge_operand(dtype, shape, rng)
        op = TopK(k, axis, largest, indices_dtype)
        yield _top(op, x, f"{label}, largest {largest}, {indices_dtype}")
    for largest in (True, False):
        x = exact_operand(dtype, (40,), rng)
        yield _top(TopK(40, 0, largest), x, f"all, largest {largest}")
        x = np.zeros((3, 5), dtype.numpy)
        yield _top(TopK(3, 1, largest), x, f"all tie, largest {largest}")
        if dtype.is_float:
            x = equal_but_not_the_same(dtype)
            yield _top(TopK(7, 0, largest), x, f"zeros and NaN of both signs, largest {largest}")


def _top(op: TopK, x: np.ndarray, label: str) -> OpCase:
    span = (slice(None),) * op.axis + (slice(op.k),)
    positions = orders(x, op.axis, op.largest)[span]
    return OpCase(op, (x,), (taken(x, positions, op.axis), positions), label=label)
