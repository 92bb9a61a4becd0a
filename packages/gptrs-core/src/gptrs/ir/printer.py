"""Programs as text: one canonical text for each program, which `parse_program` reads back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import Op
from gptrs.ir.program import VERSION, Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType


def print_program(program: Program) -> str:
    """The text form of `program`; ProgramError if it reads a value before it is defined.

    Parameters keep their names as far as those are identifiers and unlike each other; all other
    values are numbered from `%0` on in each function. Attributes at their default are left out.
    """
    functions = "\n".join(print_function(function) for function in program.functions)
    return f"{VERSION}\n{functions}"


def print_function(function: Function) -> str:
    """The text of one function, as `print_program` gives it."""
    return _Printer(f"`@{function.name}`").function(function)


def print_region(region: Region) -> str:
    """The text of a region on its own: equal texts mean equal regions, bit for bit."""
    return "\n".join(_Printer("a region").block("region", region, ""))


class _Printer:
    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[Value, str] = {}
        self._numbered = 0

    def function(self, function: Function) -> str:
        types = _print_types([value.type for value in function.body.results])
        first, *rest = self.block(f"func @{function.name}", function.body, "", f" -> {types}")
        return "\n".join([first, *rest, ""])

    def block(self, head: str, region: Region, indent: str, tail: str = "") -> list[str]:
        """`head(params)tail {`, the instructions, `return` and `}`, a line each."""
        wishes = Counter(param.name for param in region.params)
        for param in region.params:
            name = param.name
            keep = name is not None and wishes[name] == 1 and IDENTIFIER.fullmatch(name)
            self._define(param, name if keep else None)
        params = ", ".join(f"{self._names[param]}: {param.type}" for param in region.params)
        inner = f"{indent}  "
        lines = [f"{indent}{head}({params}){tail} {{"]
        for instruction in region.instructions:
            lines.extend(self._instruction(instruction, inner))
        results = ", ".join(self._name(value) for value in region.results)
        lines.append(f"{inner}return {results}" if results else f"{inner}return")
        lines.append(f"{indent}}}")
        return lines

    def _instruction(self, instruction: Instruction, indent: str) -> list[str]:
        operands = ", ".join(self._name(value) for value in instruction.operands)
        op = instruction.op
        before = " ".join(filter(None, [op.name, operands, _print_attributes(op)]))
        bodies: list[str] = []
        visible, self._names = self._names, {}
        for name, region in zip(op.region_names, instruction.regions, strict=True):
            bodies.extend(self.block(name, region, f"{indent}  "))
        self._names = visible
        for result in instruction.results:
            self._define(result, None)
        results = ", ".join(self._names[result] for result in instruction.results)
        types = _print_types([result.type for result in instruction.results])
        lines = [f"{indent}{results} = {before}", *bodies]
        lines[-1] += f" : {types}"
        return lines

    def _define(self, value: Value, name: str | None) -> None:
        if name is None:
            name = str(self._numbered)
            self._numbered += 1
        self._names[value] = f"%{name}"

    def _name(self, value: Value) -> str:
        try:
            return self._names[value]
        except KeyError:
            raise ProgramError(
                f"{self._where} reads a value of type `{value.type}` before it is defined"
            ) from None


def _print_attributes(op: Op) -> str:
    texts = [
        f"{name} = {op.attribute_kinds[name].print(value)}"
        for name, value in op.attributes().items()
    ]
    return f"{{{', '.join(texts)}}}" if texts else ""


def _print_types(types: Sequence[TensorType]) -> str:
    return str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
