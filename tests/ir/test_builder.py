"""The builder refuses what would not be a program."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import Builder, TensorType, dtypes, print_program, verify
from gptrs.ir.ops.elementwise import Add, Tanh
from gptrs.ir.program import Function, Program, Region, Value

F32 = TensorType(dtypes.f32, (2,))


def test_builds_a_verified_program():
    builder = Builder()
    x, y = builder.param(F32, "x"), builder.param(F32)
    program = builder.program(builder.emit(Add(), x, builder.emit(Tanh(), y)), x)
    verify(program)
    assert (
        print_program(program)
        == """\
ptir.v0.5
func @main(%x: f32[2], %0: f32[2]) -> (f32[2], f32[2]) {
  %1 = tanh %0 : f32[2]
  %2 = add %x, %1 : f32[2]
  return %2, %x
}
"""
    )


def test_parameter_names_are_distinct():
    builder = Builder()
    builder.param(F32, "x")
    with pytest.raises(ProgramError, match=r"^parameter `%x` is defined twice$"):
        builder.param(F32, "x")


def test_foreign_values_are_refused():
    builder = Builder()
    message = r"^value of type `f32\[2\]` does not belong to this program$"
    with pytest.raises(ProgramError, match=message):
        builder.emit(Tanh(), Value(F32))
    with pytest.raises(ProgramError, match=message):
        builder.program(Value(F32))


def test_operands_are_checked():
    builder = Builder()
    with pytest.raises(ProgramError, match=r"^`add` takes 2 operands \(lhs, rhs\), got 1$"):
        builder.emit(Add(), builder.param(F32))


def test_main_is_required():
    with pytest.raises(ProgramError, match=r"^a program needs a function called `@main`$"):
        _ = Program((Function("f", Region((), (), ())),)).main
