"""Programs as text: one canonical text for each program, which `parse_program` reads back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import Op
from gptrs.ir.program import VERSION, Function, Instruction, Program, Value
from gptrs.ir.tensor_type import TensorType


def print_program(program: Program) -> str:
    """The text form of `program`; ProgramError if it reads a value before it is defined.

    Parameters keep their names as far as those are identifiers and unlike each other; all other
    values are numbered from `%0` on in each function. Attributes at their default are left out.
    """
    functions = "\n".join(_Printer(function).text() for function in program.functions)
    return f"{VERSION}\n{functions}"


class _Printer:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names: dict[Value, str] = {}
        self._numbered = 0

    def text(self) -> str:
        body = self._function.body
        wishes = Counter(param.name for param in body.params)
        for param in body.params:
            name = param.name
            keep = name is not None and wishes[name] == 1 and IDENTIFIER.fullmatch(name)
            self._define(param, name if keep else None)
        params = ", ".join(f"{self._names[param]}: {param.type}" for param in body.params)
        lines = [self._instruction(instruction) for instruction in body.instructions]
        types = _print_types([result.type for result in body.results])
        results = ", ".join(self._name(value) for value in body.results)
        return "\n".join(
            [
                f"func @{self._function.name}({params}) -> {types} {{",
                *lines,
                f"  return {results}" if results else "  return",
                "}\n",
            ]
        )

    def _instruction(self, instruction: Instruction) -> str:
        operands = ", ".join(self._name(value) for value in instruction.operands)
        for result in instruction.results:
            self._define(result, None)
        results = ", ".join(self._names[result] for result in instruction.results)
        types = _print_types([result.type for result in instruction.results])
        parts = [instruction.op.name, operands, _print_attributes(instruction.op), f": {types}"]
        return f"  {results} = {' '.join(filter(None, parts))}"

    def _define(self, value: Value, name: str | None) -> None:
        if name is None:
            name = str(self._numbered)
            self._numbered += 1
        self._names[value] = f"%{name}"

    def _name(self, value: Value) -> str:
        try:
            return self._names[value]
        except KeyError:
            where = f"`@{self._function.name}`"
            raise ProgramError(
                f"{where} reads a value of type `{value.type}` before it is defined"
            ) from None


def _print_attributes(op: Op) -> str:
    texts = [
        f"{name} = {op.attribute_kinds[name].print(value)}"
        for name, value in op.attributes().items()
    ]
    return f"{{{', '.join(texts)}}}" if texts else ""


def _print_types(types: Sequence[TensorType]) -> str:
    return str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
