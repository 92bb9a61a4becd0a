"""Programs as immutable data: values, instructions, regions and functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from gptrs.errors import ProgramError
from gptrs.ir.bounds import MAX_EXPANDED, MAX_NESTING, require_bounded
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import OPS, Op, Signature
from gptrs.ir.tensor_type import TensorType
from gptrs.ports import program_picture, program_text
from gptrs.quoting import counted, quoted

VERSION = "ptir.v0.5"
"""The PTIR version that this package reads and writes."""
VERSION_04 = "ptir.v0.4"
"""The older version that is still read."""

_SHOWN: Final = 4
"""Most parameters, and most results, that a summary lists."""


def unknown_version(name: str) -> str:
    """Return the message that refuses a program with this version line."""
    known = f"`{VERSION}` and `{VERSION_04}`"
    return f"version {quoted(name)} is not supported, this release reads {known}"


class Value(Struct, frozen=True, eq=False):
    """An SSA value, defined once; compared by identity. `name` is a hint for the printer."""

    type: TensorType
    name: str | None = None


class Instruction(Struct, frozen=True, eq=False):
    """One application of an op: operands defined earlier, results defined here.

    `regions` correspond to `op.region_names`. They are isolated from the enclosing region, so an
    instruction reads only its operands.
    """

    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    regions: tuple[Region, ...] = ()

    @property
    def result(self) -> Value:
        """The only result; ProgramError when there are several."""
        if len(self.results) != 1:
            raise ProgramError(f"`{self.op.name}` has {len(self.results)} results, not one")
        return self.results[0]


class Region(Struct, frozen=True, eq=False):
    """Instructions with parameters and results: the body of a function, or part of an instruction.

    A region is isolated: it reads only its parameters and the values that it defines.
    """

    params: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[Value, ...]

    @property
    def signature(self) -> Signature:
        """The types of the parameters and results."""
        return Signature(
            tuple(param.type for param in self.params), tuple(value.type for value in self.results)
        )

    def walk(self) -> Iterator[Instruction]:
        """Return every instruction, each before those of its own regions."""
        pending = list(reversed(self.instructions))
        while pending:
            instruction = pending.pop()
            yield instruction
            for region in reversed(instruction.regions):
                pending.extend(reversed(region.instructions))


class Function(Struct, frozen=True, eq=False):
    """A named region, `@name` in text."""

    name: str
    body: Region


class Program(Struct, frozen=True, eq=False):
    """One or more functions; execution enters at `main`, the one called `@main`.

    A function is defined before those that refer to it, so there is no recursion.
    """

    functions: tuple[Function, ...]

    def __str__(self) -> str:
        """Return the program as PTIR text."""
        return program_text(self)

    def _repr_svg_(self) -> str | None:
        """Return a picture for notebooks; None to show text if it would be too large."""
        return program_picture(self)

    def __repr__(self) -> str:
        count = sum(1 for function in self.functions for _ in function.body.walk())
        size = counted(count, "instruction")
        main = next((each.body for each in self.functions if each.name == "main"), None)
        if main is None:
            return f"<Program without @main; {size}>"
        taken = [f"{each.name or f'arg{n}'}: {each.type}" for n, each in enumerate(main.params)]
        given = [str(value.type) for value in main.results]
        return f"<Program @main({_listed(taken)}) -> ({_listed(given)}); {size}>"

    @property
    def main(self) -> Function:
        """The entry function; ProgramError if the program has none."""
        for function in self.functions:
            if function.name == "main":
                return function
        raise ProgramError("a program needs a function called `@main`")

    @property
    def inputs(self) -> dict[str, Value]:
        """The parameters of `@main` by name; one without a name is `arg0`, `arg1`, ... by position.

        ProgramError if two inputs have one name.
        """
        params = self.main.body.params
        named = {param.name or f"arg{position}": param for position, param in enumerate(params)}
        if len(named) != len(params):
            raise ProgramError("two parameters of `@main` have one name; give each its own")
        return named

    def function(self, name: str) -> Function:
        """Return the function called `@name`; ProgramError if the program has none."""
        for function in self.functions:
            if function.name == name:
                return function
        raise ProgramError(f"the program has no function called `@{name}`")

    def reachable(self) -> tuple[Function, ...]:
        """Return `@main` and every function that it refers to, at any depth, in program order."""
        reached = {"main"}
        # Callees precede callers, so one backward pass suffices.
        for function in reversed(self.functions):
            if function.name in reached:
                for instruction in function.body.walk():
                    reached.update(instruction.op.callees())
        return tuple(function for function in self.functions if function.name in reached)

    def bodies(self, instruction: Instruction) -> tuple[Signature, ...]:
        """Return the signatures of regions and callees that `op.result_types` takes."""
        callees = (self.function(name).body for name in instruction.op.callees())
        return tuple(region.signature for region in (*instruction.regions, *callees))


def _listed(texts: Sequence[str]) -> str:
    """Return the first few of many texts and the number of the others."""
    shown = texts if len(texts) <= _SHOWN else texts[:_SHOWN]
    more = [f"{len(texts) - len(shown)} more"] if len(texts) > len(shown) else []
    return ", ".join([*shown, *more])


# Checks a whole program, however it was made; backends may trust a verified program.


def verify(program: Program) -> None:
    """Raise ProgramError for the first rule of PTIR that `program` breaks, in text order.

    Function names are identifiers, distinct, and one is `main`; a function refers to those defined
    before it. In each region the parameters have distinct names; every value is defined once in the
    program and read only in its own region, after its definition; every op is registered, its
    attributes, operands and regions are what its class requires, and its results have the inferred
    types; no value is too large, no nesting too deep, and no call tree too large. Takes time linear
    in the size of the program.
    """
    verifier = _Verifier()
    for function in program.functions:
        verifier.function(function)
    if "main" not in verifier.signatures:
        raise ProgramError("a program needs a function called `@main`")


class _Verifier:
    def __init__(self) -> None:
        self.signatures: dict[str, Signature] = {}
        self._expanded: dict[str, int] = {}
        self._depth: dict[str, int] = {}
        self._defined: set[Value] = set()
        self._where = ""

    def function(self, function: Function) -> None:
        """Check one function whose callees have been checked."""
        name = function.name
        if not IDENTIFIER.fullmatch(name):
            raise ProgramError(f"a function cannot be called `{name}`")
        if name in self.signatures:
            raise ProgramError(f"two functions are called `@{name}`")
        self._where = f"`@{name}`"
        size = self._region(function.body, self._where, 0)
        callees = {name for step in function.body.walk() for name in step.op.callees()}
        if callees and size > MAX_EXPANDED:
            raise ProgramError(f"`@{name}` with all that it calls has more than 2^18 instructions")
        depth = 1 + max((self._depth[callee] for callee in callees), default=0)
        if depth > MAX_NESTING:
            raise ProgramError(f"calls from `@{name}` are nested deeper than {MAX_NESTING}")
        self.signatures[name] = function.body.signature
        self._expanded[name], self._depth[name] = size, depth

    def _region(self, region: Region, name: str, nesting: int) -> int:
        """Check a region; return its number of instructions, including those of its callees."""
        if nesting > MAX_NESTING:
            raise self._error(f"regions are nested deeper than {MAX_NESTING}")
        names: set[str] = set()
        for param in region.params:
            if param.name in names:
                raise self._error(f"parameter `%{param.name}` is defined twice")
            if param.name is not None:
                names.add(param.name)
        visible: set[Value] = set()
        self._define(region.params, visible)
        size = 0
        for index, instruction in enumerate(region.instructions):
            self._where = f"instruction {index} of {name}"
            self._require_visible(instruction.operands, visible)
            size += 1 + self._regions(instruction, self._where, nesting)
            self._check(instruction)
            size += sum(self._expanded[callee] for callee in instruction.op.callees())
            self._define(instruction.results, visible)
        self._where = f"the results of {name}"
        self._require_visible(region.results, visible)
        self._where = name
        return size

    def _regions(self, instruction: Instruction, where: str, nesting: int) -> int:
        op = instruction.op
        name: object = getattr(op, "name", None)
        if not isinstance(name, str) or OPS.get(name) is not type(op):
            raise self._error(f"`{type(op).__name__}` is not a registered op")
        if len(op.region_names) != len(instruction.regions):
            wanted, found = len(op.region_names), len(instruction.regions)
            raise self._error(f"`{op.name}` has {wanted} regions, got {found}")
        size = 0
        for region_name, region in zip(op.region_names, instruction.regions, strict=True):
            size += self._region(region, f"`{region_name}` in {where}", nesting + 1)
        self._where = where
        return size

    def _check(self, instruction: Instruction) -> None:
        op = instruction.op
        try:
            inferred = op.result_types(
                [operand.type for operand in instruction.operands],
                (
                    *(region.signature for region in instruction.regions),
                    *self._callees(op.callees()),
                ),
            )
        except ProgramError as error:
            raise self._error(str(error)) from error
        stated = tuple(result.type for result in instruction.results)
        if stated != inferred:
            want, have = (", ".join(map(str, types)) for types in (inferred, stated))
            raise self._error(f"`{op.name}` gives ({want}), not ({have})")

    def _callees(self, names: Sequence[str]) -> list[Signature]:
        for name in names:
            if name not in self.signatures:
                raise ProgramError(f"no function above is called `@{name}`")
        return [self.signatures[name] for name in names]

    def _define(self, values: Sequence[Value], visible: set[Value]) -> None:
        for value in values:
            if value in self._defined:
                raise self._error(f"a value of type `{value.type}` is defined twice")
            self._defined.add(value)
            visible.add(value)
            try:
                require_bounded(value.type)
            except ProgramError as error:
                raise self._error(str(error)) from error

    def _require_visible(self, values: Sequence[Value], visible: set[Value]) -> None:
        for value in values:
            if value not in visible:
                raise self._error(f"a value of type `{value.type}` is read before it is defined")

    def _error(self, reason: str) -> ProgramError:
        return ProgramError(f"{self._where}: {reason}")
