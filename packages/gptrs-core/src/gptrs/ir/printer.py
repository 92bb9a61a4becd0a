"""Programs as text: one canonical text for each program, which `parse_program` reads back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from gptrs.errors import ProgramError
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import Op
from gptrs.ir.program import VERSION, Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.ports import expanded

# The names that values get in a printed program, the same in the text and in the JSON form.


class ValueNames:
    """Names values in the order in which they are printed; `where` is the prefix of errors.

    Parameters keep their names if these are distinct identifiers; all other values are numbered
    from 0, across the regions of a function.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[Value, str] = {}
        self._numbered = 0

    @contextmanager
    def inner_region(self) -> Generator[None]:
        """Scope of an inner region, in which no name of the outer region is visible."""
        visible, self._names = self._names, {}
        yield
        self._names = visible

    def define_params(self, params: Sequence[Value]) -> list[str]:
        """Return the names of the parameters of a region."""
        wishes = Counter(param.name for param in params)
        for param in params:
            name = param.name
            keep = name is not None and wishes[name] == 1 and IDENTIFIER.fullmatch(name)
            self._names[param] = name if keep and name else self._number()
        return [self._names[param] for param in params]

    def define_results(self, results: Sequence[Value]) -> list[str]:
        """Return the names of the results of an instruction."""
        for result in results:
            self._names[result] = self._number()
        return [self._names[result] for result in results]

    def of(self, values: Sequence[Value]) -> list[str]:
        """Return the names of these values; ProgramError for one that has not been defined."""
        for value in values:
            if value not in self._names:
                what = f"reads a value of type `{value.type}` before it is defined"
                raise ProgramError(f"{self._where} {what}")
        return [self._names[value] for value in values]

    def _number(self) -> str:
        self._numbered += 1
        return str(self._numbered - 1)


def print_program(program: Program, *, expand: bool = False) -> str:
    """Return the text form of `program`; ProgramError if it reads a value before it is defined.

    With `expand`, composites are replaced by their decompositions: only primitives remain.

    Parameters keep their names if these are distinct identifiers; all other values are numbered
    from `%0` in each function. Default attributes are omitted.
    """
    if expand:
        program = cast("Program", expanded(program))
    functions = "\n".join(print_function(function) for function in program.functions)
    return f"{VERSION}\n{functions}"


def print_function(function: Function) -> str:
    """Return the text of one function, as `print_program` gives it."""
    return _Printer(f"`@{function.name}`").function(function)


def print_region(region: Region) -> str:
    """Return the text of a region on its own: equal texts mean equal regions, bit for bit."""
    return "\n".join(_Printer("a region").block("region", region, ""))


def print_instruction(instruction: Instruction, names: Mapping[Value, str]) -> str:
    """Return the line of an instruction with these names of values; `{...}` stands for regions."""
    op = instruction.op
    operands = _listed([names[value] for value in instruction.operands])
    regions = "{...}" if instruction.regions else ""
    before = " ".join(filter(None, [op.name, operands, _print_attributes(op), regions]))
    results = _listed([names[value] for value in instruction.results])
    return f"{results} = {before} : {_print_types([each.type for each in instruction.results])}"


class _Printer:
    def __init__(self, where: str) -> None:
        self._names = ValueNames(where)

    def function(self, function: Function) -> str:
        types = _print_types([value.type for value in function.body.results])
        first, *rest = self.block(f"func @{function.name}", function.body, "", f" -> {types}")
        return "\n".join([first, *rest, ""])

    def block(self, head: str, region: Region, indent: str, tail: str = "") -> list[str]:
        """`head(params)tail {`, the instructions, `return` and `}`, a line each."""
        names = self._names.define_params(region.params)
        pairs = zip(names, region.params, strict=True)
        params = ", ".join(f"%{name}: {param.type}" for name, param in pairs)
        inner = f"{indent}  "
        lines = [f"{indent}{head}({params}){tail} {{"]
        for instruction in region.instructions:
            lines.extend(self._instruction(instruction, inner))
        results = _listed(self._names.of(region.results))
        lines.append(f"{inner}return {results}" if results else f"{inner}return")
        lines.append(f"{indent}}}")
        return lines

    def _instruction(self, instruction: Instruction, indent: str) -> list[str]:
        operands = _listed(self._names.of(instruction.operands))
        op = instruction.op
        before = " ".join(filter(None, [op.name, operands, _print_attributes(op)]))
        bodies: list[str] = []
        for name, region in zip(op.region_names, instruction.regions, strict=True):
            with self._names.inner_region():
                bodies.extend(self.block(name, region, f"{indent}  "))
        results = _listed(self._names.define_results(instruction.results))
        types = _print_types([result.type for result in instruction.results])
        lines = [f"{indent}{results} = {before}", *bodies]
        lines[-1] += f" : {types}"
        return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"%{name}" for name in names)


def _print_attributes(op: Op) -> str:
    texts = [
        f"{name} = {op.attribute_kinds[name].print(value)}"
        for name, value in op.attributes().items()
    ]
    return f"{{{', '.join(texts)}}}" if texts else ""


def _print_types(types: Sequence[TensorType]) -> str:
    return str(types[0]) if len(types) == 1 else f"({', '.join(map(str, types))})"
