"""Conformance rows of the ops that run regions and functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, FunctionName
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call, Cond, Scan, While
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.ops.elementwise import Add, Compare, Div, Mul, Neg, Sub
from gptrs.ir.program import Function, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.op_case import OpCase, rows

F32 = TensorType(dtypes.f32, (2, 3))
ROW = TensorType(dtypes.f32, (3,))
SI32 = TensorType(dtypes.si32, ())
EMPTY = TensorType(dtypes.f32, (0, 3))


def identity(*types: TensorType) -> Region:
    """Returns its parameters."""
    builder = Builder()
    return builder.region(*[builder.param(type_) for type_ in types])


def unary(op: Op, type_: TensorType) -> Region:
    """Applies `op` to its parameter."""
    builder = Builder()
    return builder.region(builder.emit(op, builder.param(type_)))


def constant(builder: Builder, value: int) -> Value:
    """A si32 scalar."""
    return builder.emit(Constant(Literal.full(value, dtypes.si32)))


@rows(Cond, dtypes=[dtypes.i1])
def cond(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Each branch, several results in another order, nothing passed in, an error not reached."""
    x = rng.normal(size=(2, 3)).astype(np.float32)
    for predicate in (True, False):
        regions = (unary(Neg(), F32), identity(F32))
        expected = (-x if predicate else x).astype("f8")
        inputs = (np.array(predicate), x)
        yield OpCase(Cond(), inputs, (expected,), label=f"branch {predicate}", regions=regions)
    n, m = np.array(3, np.int32), np.array(0, np.int32)
    swapped = Builder()
    a, b = swapped.param(SI32), swapped.param(SI32)
    regions = (swapped.region(b, a), identity(SI32, SI32))
    yield OpCase(Cond(), (np.array(True), n, m), (m, n), label="results swapped", regions=regions)
    regions = (_numbers(1, 2), _numbers(3, 4))
    expected = (np.array(3, np.int32), np.array(4, np.int32))
    yield OpCase(Cond(), (np.array(False),), expected, label="no operands", regions=regions)
    regions = (_division(), _first(SI32, SI32))
    yield OpCase(
        Cond(), (np.array(False), n, m), (n,), label="error in the other branch", regions=regions
    )
    regions = (_division(), _first(SI32, SI32))
    yield OpCase(
        Cond(), (np.array(True), n, m), (), label="error in the branch", regions=regions,
        error="`div`",
    )  # fmt: skip
    none = np.zeros((0, 3), np.float32)
    regions = (identity(EMPTY), unary(Neg(), EMPTY))
    yield OpCase(
        Cond(), (np.array(False), none), (none.astype("f8"),), label="empty", regions=regions
    )


def _numbers(*values: int) -> Region:
    builder = Builder()
    return builder.region(*[constant(builder, value) for value in values])


def _division() -> Region:
    builder = Builder()
    a, b = builder.param(SI32), builder.param(SI32)
    return builder.region(builder.emit(Div(), a, b))


def _first(*types: TensorType) -> Region:
    builder = Builder()
    params = [builder.param(type_) for type_ in types]
    return builder.region(params[0])


@rows(While, dtypes=[dtypes.i1])
def while_(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """No iteration, several iterations, a state whose parts are swapped, and a nested loop."""
    for start, expected in ((10, 10), (9, 12), (-5, 10)):
        regions = (_below(10, SI32), _plus(3))
        inputs = (np.array(start, np.int32),)
        found = (np.array(expected, np.int32),)
        yield OpCase(While(), inputs, found, label=f"from {start}", regions=regions)
    # Fibonacci numbers: i, a, b = i + 1, b, a + b
    body = Builder()
    i, a, b = (body.param(SI32) for _ in range(3))
    step = body.emit(Add(), i, constant(body, 1))
    regions = (_below(9, SI32, SI32, SI32), body.region(step, b, body.emit(Add(), a, b)))
    inputs = tuple(np.array(value, np.int32) for value in (0, 0, 1))
    found = tuple(np.array(value, np.int32) for value in (9, 34, 55))
    yield OpCase(While(), inputs, found, label="Fibonacci", regions=regions)
    # the sum of 0 + .. + (i - 1) over i < 4, the inner sum by a loop of its own
    yield OpCase(
        While(),
        (np.array(0, np.int32), np.array(0, np.int32)),
        (np.array(4, np.int32), np.array(0 + 0 + 1 + 3, np.int32)),
        label="nested",
        regions=_nested_sum(),
    )


def _below(limit: int, *state: TensorType) -> Region:
    builder = Builder()
    first, *_ = [builder.param(type_) for type_ in state]
    return builder.region(builder.emit(Compare("lt"), first, constant(builder, limit)))


def _plus(amount: int) -> Region:
    builder = Builder()
    return builder.region(builder.emit(Add(), builder.param(SI32), constant(builder, amount)))


def _nested_sum() -> tuple[Region, Region]:
    inner_condition = Builder()
    j, i, _ = (inner_condition.param(SI32) for _ in range(3))
    condition = inner_condition.region(inner_condition.emit(Compare("lt"), j, i))
    inner_body = Builder()
    j, i, total = (inner_body.param(SI32) for _ in range(3))
    following = inner_body.emit(Add(), j, constant(inner_body, 1))
    body = inner_body.region(following, i, inner_body.emit(Add(), total, j))
    outer = Builder()
    i, total = outer.param(SI32), outer.param(SI32)
    zero = constant(outer, 0)
    inner = outer.emit_many(While(), (zero, i, total), (condition, body))
    following = outer.emit(Add(), i, constant(outer, 1))
    return _below(4, SI32, SI32), outer.region(following, inner.results[2])


@rows(Scan, dtypes=[dtypes.i1])
def scan(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Forward and backward, with and without carried and scanned values, and no step at all."""
    xs = rng.integers(-9, 9, size=(4, 3)).astype(np.float32)
    start = rng.integers(-9, 9, size=3).astype(np.float32)
    for reverse in (False, True):
        order = range(4)[::-1] if reverse else range(4)
        total, stacked = start.astype("f8"), np.zeros((4, 3))
        for row in order:
            total = total - xs[row]
            stacked[row] = total * xs[row]
        yield OpCase(
            Scan(1, reverse=reverse), (start, xs), (total, stacked),
            label=f"reverse {reverse}", regions=(_running_difference(),),
        )  # fmt: skip
    yield OpCase(
        Scan(0), (xs, xs[:, :0]), (-xs.astype("f8"), np.zeros((4, 0))),
        label="nothing carried", regions=(_negate_first(ROW, TensorType(dtypes.f32, (0,))),),
    )  # fmt: skip
    counted = (np.array(16, np.int32), np.array([1, 2, 4, 8], np.int32))
    yield OpCase(
        Scan(1, length=4), (np.array(1, np.int32),), counted,
        label="length alone", regions=(_doubling(),),
    )  # fmt: skip
    yield OpCase(
        Scan(1), (start, xs[:0]), (start.astype("f8"), np.zeros((0, 3))),
        label="no steps", regions=(_running_difference(),),
    )  # fmt: skip
    unchanged = (start.astype("f8"), (start + 1).astype("f8"))
    yield OpCase(
        Scan(2, length=0), (start, start + 1), unchanged,
        label="no steps of a length", regions=(identity(ROW, ROW),),
    )  # fmt: skip
    failing = (np.array(7, np.int32), np.array([1, 0], np.int32))
    yield OpCase(
        Scan(1), failing, (), label="error in a step", regions=(_division(),), error="`div`"
    )


def _running_difference() -> Region:
    """`total, x -> total - x, (total - x) * x`."""
    builder = Builder()
    total, x = builder.param(ROW), builder.param(ROW)
    following = builder.emit(Sub(), total, x)
    return builder.region(following, builder.emit(Mul(), following, x))


def _negate_first(*types: TensorType) -> Region:
    builder = Builder()
    first, *others = [builder.param(type_) for type_ in types]
    return builder.region(builder.emit(Neg(), first), *others)


def _doubling() -> Region:
    """`n -> 2 n, n`."""
    builder = Builder()
    n = builder.param(SI32)
    return builder.region(builder.emit(Add(), n, n), n)


@rows(Call, dtypes=[dtypes.i1])
def call(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """One function, and one that calls another twice."""
    x = rng.normal(size=(2, 3)).astype(np.float32)
    negated = Function("negated", unary(Neg(), F32))
    op = Call(FunctionName("negated"))
    yield OpCase(op, (x,), (-x.astype("f8"),), label="one function", functions=(negated,))
    outer = Builder([negated])
    value = outer.param(F32)
    once = outer.emit(op, value)
    twice = Function("twice", outer.region(outer.emit(op, once), once))
    expected = (x.astype("f8"), -x.astype("f8"))
    yield OpCase(
        Call(FunctionName("twice")), (x,), expected,
        label="function of a function", functions=(negated, twice),
    )  # fmt: skip


# Conformance rows of `composite`: a kind that no backend claims.
#
# The backend sees such a program as in normal use: with the composite inlined.


TYPE = TensorType(dtypes.f32, (2, 3))
KIND = "gptrs_conformance.sum_and_product.v1"


@rows(Composite, dtypes=[dtypes.i1])
def composite(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Two operands, two results, attributes that only a kernel would read."""
    x = rng.integers(-9, 9, size=(2, 3)).astype(np.float32)
    y = rng.integers(-9, 9, size=(2, 3)).astype(np.float32)
    builder = Builder()
    a, b = builder.param(TYPE), builder.param(TYPE)
    body = builder.region(builder.emit(Add(), a, b), builder.emit(Mul(), a, b))
    function = Function("sum_and_product", body)
    attrs = Dictionary.of(tile=(8, 8), fast=True)
    op = Composite(KIND, FunctionName(function.name), "a b", attrs)
    wide = x.astype("f8"), y.astype("f8")
    expected = (wide[0] + wide[1], wide[0] * wide[1])
    yield OpCase(op, (x, y), expected, label="decomposed", functions=(function,))
