"""Cases of the ops that put elements in order: each line sorted by Python, which is stable."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.sorting import Sort, TopK
from gptrs_conformance.exact_values import Index, edge_operand, exact_operand, lines, plain, wide
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float

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
    for place, values in lines(plain(x), (axis,)):
        span = (*place[:axis], slice(None), *place[axis:])
        result[span] = order([value.real for value in values], descending)
    return result


def taken(x: np.ndarray, positions: np.ndarray, axis: int) -> np.ndarray:
    """The elements of `x` at these positions of each line, as an expected value."""
    values = plain(x)
    result = np.zeros(positions.shape, object)
    for place in np.ndindex(*positions.shape):
        result[place] = values[(*place[:axis], int(positions[place]), *place[axis + 1 :])]
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
