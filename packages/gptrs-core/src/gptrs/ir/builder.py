"""Builds a one-function program instruction by instruction, checking each as it is added."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType


class Builder:
    """Collects parameters and instructions of `@main`, then makes the program.

    >>> builder = Builder()
    >>> x = builder.param(TensorType(dtypes.f32, (2,)), "x")
    >>> program = builder.program(builder.emit(Tanh(), x))
    """

    def __init__(self) -> None:
        self._params: list[Value] = []
        self._instructions: list[Instruction] = []
        self._defined: set[Value] = set()

    def param(self, type_: TensorType, name: str | None = None) -> Value:
        """Add a parameter; ProgramError when its name is taken."""
        if name is not None and any(param.name == name for param in self._params):
            raise ProgramError(f"parameter `%{name}` is defined twice")
        value = Value(type_, name)
        self._params.append(value)
        self._defined.add(value)
        return value

    def emit(self, op: Op, *operands: Value) -> Value:
        """Add an instruction with one result and return that result."""
        return self.emit_many(op, operands).result

    def emit_many(self, op: Op, operands: Sequence[Value]) -> Instruction:
        """Add an instruction with any number of results; ProgramError if operands do not fit."""
        self._require_defined(operands)
        types = op.result_types([operand.type for operand in operands])
        instruction = Instruction(op, tuple(operands), tuple(Value(type_) for type_ in types))
        self._instructions.append(instruction)
        self._defined.update(instruction.results)
        return instruction

    def program(self, *results: Value) -> Program:
        """The program that returns `results`."""
        self._require_defined(results)
        region = Region(tuple(self._params), tuple(self._instructions), results)
        return Program((Function("main", region),))

    def _require_defined(self, values: Sequence[Value]) -> None:
        for value in values:
            if value not in self._defined:
                raise ProgramError(f"value of type `{value.type}` does not belong to this program")
