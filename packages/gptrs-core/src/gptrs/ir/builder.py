"""Builds a region or program instruction by instruction, checking each as it is added."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType


class Builder:
    """Collects parameters and instructions of a region, mostly of `@main`, then makes the program.

    `functions` are those that instructions may refer to; they come first in the program.

    >>> builder = Builder()
    >>> x = builder.param(TensorType(dtypes.f32, (2,)), "x")
    >>> program = builder.program(builder.emit(Tanh(), x))
    """

    def __init__(self, functions: Sequence[Function] = ()) -> None:
        self._functions = tuple(functions)
        self._params: list[Value] = []
        self._names: set[str] = set()
        self._instructions: list[Instruction] = []
        self._defined: set[Value] = set()

    def param(self, type_: TensorType, name: str | None = None) -> Value:
        """Add a parameter; ProgramError when its name is taken."""
        if name is not None:
            if name in self._names:
                raise ProgramError(f"parameter `%{name}` is defined twice")
            self._names.add(name)
        value = Value(type_, name)
        self._params.append(value)
        self._defined.add(value)
        return value

    def emit(self, op: Op, *operands: Value, regions: Sequence[Region] = ()) -> Value:
        """Add an instruction with one result and return that result."""
        return self.emit_many(op, operands, regions).result

    def emit_many(
        self, op: Op, operands: Sequence[Value], regions: Sequence[Region] = ()
    ) -> Instruction:
        """Add an instruction with any number of results; ProgramError if operands do not fit."""
        self._require_defined(operands)
        bodies = (*regions, *(self._function(name).body for name in op.callees()))
        signatures = [body.signature for body in bodies]
        types = op.result_types([operand.type for operand in operands], signatures)
        results = tuple(Value(type_) for type_ in types)
        instruction = Instruction(op, tuple(operands), results, tuple(regions))
        self._instructions.append(instruction)
        self._defined.update(instruction.results)
        return instruction

    def program(self, *results: Value) -> Program:
        """Return the program that returns `results`."""
        return Program((*self._functions, Function("main", self.region(*results))))

    def region(self, *results: Value) -> Region:
        """Return what was built, as a region that returns `results`."""
        self._require_defined(results)
        return Region(tuple(self._params), tuple(self._instructions), results)

    def _function(self, name: str) -> Function:
        for function in self._functions:
            if function.name == name:
                return function
        raise ProgramError(f"no function given to the builder is called `@{name}`")

    def _require_defined(self, values: Sequence[Value]) -> None:
        for value in values:
            if value not in self._defined:
                raise ProgramError(f"value of type `{value.type}` does not belong to this program")
