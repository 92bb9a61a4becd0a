"""Liveness: each value dies at its last use, results never, unused ones where they are defined."""

from __future__ import annotations

from gptrs.backend.memory_plan import dying_values
from gptrs.ir import dtypes
from gptrs.ir.builder import Builder
from gptrs.ir.ops.elementwise import Add, Neg
from gptrs.ir.tensor_type import TensorType

F32 = TensorType(dtypes.f32, (2,))


def test_values_die_at_their_last_use() -> None:
    builder = Builder()
    x, y = builder.param(F32), builder.param(F32)
    a = builder.emit(Add(), x, y)
    b = builder.emit(Neg(), a)
    c = builder.emit(Add(), a, x)
    d = builder.emit(Add(), b, c)
    plan = dying_values(builder.program(d).main.body)
    assert [set(values) for values in plan] == [{y}, set(), {a, x}, {b, c}]


def test_a_value_used_twice_by_one_instruction_dies_once() -> None:
    builder = Builder()
    x = builder.param(F32)
    result = builder.emit(Add(), x, x)
    assert dying_values(builder.program(result).main.body) == [(x,)]


def test_results_never_die() -> None:
    builder = Builder()
    x = builder.param(F32)
    a = builder.emit(Neg(), x)
    b = builder.emit(Neg(), a)
    assert dying_values(builder.program(a, b, x).main.body) == [(), ()]


def test_a_value_that_nothing_reads_dies_where_it_is_defined() -> None:
    builder = Builder()
    x = builder.param(F32)
    unused = builder.emit(Neg(), x)
    result = builder.emit(Neg(), x)
    assert dying_values(builder.program(result).main.body) == [(unused,), (x,)]


def test_parameters_that_nothing_reads_are_not_listed() -> None:
    builder = Builder()
    x, unread = builder.param(F32), builder.param(F32)
    plan = dying_values(builder.program(builder.emit(Neg(), x)).main.body)
    assert plan == [(x,)]
    assert all(unread not in values for values in plan)


def test_a_region_without_instructions() -> None:
    builder = Builder()
    x = builder.param(F32)
    assert dying_values(builder.program(x).main.body) == []
