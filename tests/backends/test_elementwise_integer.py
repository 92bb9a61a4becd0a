"""Elementwise ops on integers and `i1` against Python's integers, bit for bit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.numerics import every_value, integer_range, wrapped
from gptrs_conformance.samples import SHAPES, edge_integers, integers, pairs, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

Exact = Callable[..., Any]


def quotient(a: int, b: int) -> int:
    """`a / b` truncated toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shift_left(a: int, b: int, dtype: DType) -> int:
    return a << b if 0 <= b < dtype.bits else 0


def shift_right_arithmetic(a: int, b: int, dtype: DType) -> int:
    return a >> (b if 0 <= b < dtype.bits else dtype.bits)


def shift_right_logical(a: int, b: int, dtype: DType) -> int:
    return a % (1 << dtype.bits) >> b if 0 <= b < dtype.bits else 0


UNARY: dict[Op, Exact] = {
    ops.Neg(): operator.neg,
    ops.Abs(): abs,
    ops.Sign(): lambda a: (a > 0) - (a < 0),
    ops.Not(): operator.invert,
}
BINARY: dict[Op, Exact] = {
    ops.Add(): operator.add,
    ops.Sub(): operator.sub,
    ops.Mul(): operator.mul,
    ops.Maximum(): max,
    ops.Minimum(): min,
    ops.And(): operator.and_,
    ops.Or(): operator.or_,
    ops.Xor(): operator.xor,
}
DIVISION: dict[Op, Exact] = {
    ops.Div(): quotient,
    ops.Rem(): lambda a, b: a - b * quotient(a, b),
}
SHIFTS: dict[Op, Callable[[int, int, DType], int]] = {
    ops.ShiftLeft(): shift_left,
    ops.ShiftRightArithmetic(): shift_right_arithmetic,
    ops.ShiftRightLogical(): shift_right_logical,
}


def op_name(op: Op) -> str:
    return op.name


def values_of(dtype: DType) -> np.ndarray:
    """All values of a type of 4 bits, the edges of others."""
    if dtype.bits == 4:
        return every_value(dtype)
    return integers(edge_integers(dtype), dtype)


def assert_exact(found: np.ndarray, expected: list[int], dtype: DType) -> None:
    """`found` against exact results, wrapped."""
    assert [int(value) for value in found] == [wrapped(value, dtype) for value in expected]


def as_ints(x: np.ndarray) -> list[int]:
    return [int(value) for value in x]


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("op", UNARY, ids=op_name)
def test_unary(backend: Backend, op: Op, dtype: DType) -> None:
    x = values_of(dtype)
    assert_exact(run_op(backend, op, x), [UNARY[op](a) for a in as_ints(x)], dtype)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("op", BINARY, ids=op_name)
def test_binary(backend: Backend, op: Op, dtype: DType) -> None:
    x, y = pairs(values_of(dtype))
    expected = list(map(BINARY[op], as_ints(x), as_ints(y)))
    assert_exact(run_op(backend, op, x, y), expected, dtype)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("op", DIVISION, ids=op_name)
def test_division(backend: Backend, op: Op, dtype: DType) -> None:
    x, y = pairs(values_of(dtype))
    nonzero = [value != 0 for value in as_ints(y)]
    x, y = x[nonzero], y[nonzero]
    expected = list(map(DIVISION[op], as_ints(x), as_ints(y)))
    assert_exact(run_op(backend, op, x, y), expected, dtype)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("op", DIVISION, ids=op_name)
def test_division_by_zero(backend: Backend, op: Op, dtype: DType) -> None:
    x = sample(dtype, (2, 3))
    y = integers([1, 1, 1, 1, 0, 1], dtype).reshape(2, 3)
    with pytest.raises(ExecutionError, match=f"`{op.name}`.* zero"):
        run_op(backend, op, x, y)


@pytest.mark.parametrize("op", DIVISION, ids=op_name)
def test_division_of_nothing(backend: Backend, op: Op) -> None:
    nothing = np.zeros((0, 3), np.int32)
    assert run_op(backend, op, nothing, nothing).shape == (0, 3)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("op", SHIFTS, ids=op_name)
def test_shifts(backend: Backend, op: Op, dtype: DType) -> None:
    low, high = integer_range(dtype)
    wanted = (-1, 0, 1, 2, 3, dtype.bits - 1, dtype.bits, dtype.bits + 1, 64, low, high)
    amounts = integers([n for n in wanted if low <= n <= high], dtype)
    values = values_of(dtype)
    x, y = np.repeat(values, len(amounts)), np.tile(amounts, len(values))
    expected = [SHIFTS[op](a, b, dtype) for a, b in zip(as_ints(x), as_ints(y), strict=True)]
    assert_exact(run_op(backend, op, x, y), expected, dtype)


@pytest.mark.parametrize("dtype", [dtypes.si8, dtypes.ui8], ids=str)
@pytest.mark.parametrize("op", [*BINARY, *DIVISION], ids=op_name)
def test_every_pair_of_bytes(backend: Backend, op: Op, dtype: DType) -> None:
    x, y = pairs(every_value(dtype))
    if op in DIVISION:
        x, y = x[y != 0], y[y != 0]
    exact = {**BINARY, **DIVISION}[op]
    assert_exact(run_op(backend, op, x, y), list(map(exact, x.tolist(), y.tolist())), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*UNARY, *BINARY], ids=op_name)
def test_shapes(backend: Backend, op: Op, shape: tuple[int, ...]) -> None:
    x, y = sample(dtypes.si64, shape, 0), sample(dtypes.si64, shape, 1)
    operands = (x,) if op in UNARY else (x, y)
    exact = {**UNARY, **BINARY}[op]
    found = run_op(backend, op, *operands)
    assert_exact(
        found.ravel(), list(map(exact, *(o.ravel().tolist() for o in operands))), dtypes.si64
    )


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.And(), [False, False, False, True]),
        (ops.Or(), [False, True, True, True]),
        (ops.Xor(), [False, True, True, False]),
        (ops.Maximum(), [False, True, True, True]),
        (ops.Minimum(), [False, False, False, True]),
    ],
)
def test_binary_of_booleans(backend: Backend, op: Op, expected: list[bool]) -> None:
    x, y = pairs(np.array([False, True]))
    assert run_op(backend, op, x, y).tolist() == expected


def test_not_of_booleans(backend: Backend) -> None:
    assert run_op(backend, ops.Not(), np.array([False, True])).tolist() == [True, False]
