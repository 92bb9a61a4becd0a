"""Programs as immutable data: values, instructions, regions and functions."""

from __future__ import annotations

from dataclasses import dataclass

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.tensor_type import TensorType

VERSION = "ptir.v0.5"
"""The PTIR version that this package reads and writes."""


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An SSA value, defined once; compared by identity. `name` is a wish for the printer."""

    type: TensorType
    name: str | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Instruction:
    """One application of an op: operands defined earlier, results defined here."""

    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]

    @property
    def result(self) -> Value:
        """The only result; ProgramError when there are several."""
        if len(self.results) != 1:
            raise ProgramError(f"`{self.op.name}` has {len(self.results)} results, not one")
        return self.results[0]


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """A list of instructions with parameters and results: the body of a function."""

    params: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """A named region, `@name` in text."""

    name: str
    body: Region


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """One or more functions; execution enters at `main`, the one called `@main`."""

    functions: tuple[Function, ...]

    @property
    def main(self) -> Function:
        """The entry function; ProgramError if the program has none."""
        for function in self.functions:
            if function.name == "main":
                return function
        raise ProgramError("a program needs a function called `@main`")
