"""Small programs for tests of the driver: one op on another."""

from __future__ import annotations

from gptrs.ir import Builder, Op, Program, TensorType, dtypes

F32 = TensorType(dtypes.f32, (2, 3))


def chain(ops: list[Op], type_: TensorType = F32) -> Program:
    builder = Builder()
    value = builder.param(type_, "x")
    for op in ops:
        value = builder.emit(op, value)
    return builder.program(value)


def op_names(program: Program) -> list[str]:
    return [instruction.op.name for instruction in program.main.body.instructions]
