"""Which functions are found in programs, and what a call of each looks like there."""

from __future__ import annotations

from typing import Any

from gptrs import functionals as functionals  # registers them
from gptrs.functionals.matching.examples import pattern_names
from gptrs.functionals.matching.patterns import Variant, pattern
from gptrs.ir.printer import print_program
from gptrs.ir.program import Function, Program
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class ListedVariant:
    """One way in which calls look."""

    operands: tuple[str, ...]
    fixed: dict[str, Any]
    """Arguments that are the same in all such calls."""
    read: dict[str, str]
    """The others, and the op that they are read from."""
    ops: tuple[str, ...]
    """The ops that such a call consists of."""
    example: str
    """One of them, as a program."""


@dataclass(frozen=True)
class ListedPattern:
    """A function by name, with the ways in which its calls look."""

    name: str
    variants: tuple[ListedVariant, ...]


def list_patterns() -> list[ListedPattern]:
    """Return all patterns by name."""
    return [
        ListedPattern(name, tuple(map(_listed, pattern(name).variants))) for name in pattern_names()
    ]


def _listed(variant: Variant) -> ListedVariant:
    region = variant.template.region
    return ListedVariant(
        variant.operands,
        {name: _plain(value) for name, value in variant.constants.items()},
        {name: reader.instruction.op.name for name, reader in variant.readers.items()},
        tuple(made.op.name for made in region.instructions),
        print_program(Program((Function("main", region),))),
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
