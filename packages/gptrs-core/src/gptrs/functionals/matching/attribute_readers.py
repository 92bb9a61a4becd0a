"""Readers of numeric arguments from captured calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Instruction, Program
from gptrs.optimizer.rewrite.template import TemplateMatch
from gptrs.quick_dataclass import dataclass

Call = Mapping[str, object]
Conversion = Callable[[object], object]
Same = Callable[[Call, Program], bool]
"""Returns whether a call is captured as a program."""

_ROUNDING = 2.0**-7
"""Relative error of a number that went through bf16."""


def _as_it_is(value: object) -> object:
    return value


def _only(value: object) -> object:
    (one,) = cast("Sequence[object]", value)
    return one


def _pairs(value: object) -> object:
    flat = cast("Sequence[object]", value)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _inner(value: object) -> object:
    """Return the entries of the spatial axes, between batch and channels, of one entry an axis."""
    return cast("Sequence[object]", value)[1:-1]


_CONVERSIONS: tuple[Conversion, ...] = (_as_it_is, _only, _pairs, _inner)


@dataclass(frozen=True)
class Reader:
    """One attribute of one instruction of a template, and how it becomes an argument."""

    instruction: Instruction
    attribute: str
    conversion: Conversion
    absent: object = None
    """The argument for an attribute at its default."""

    def read(self, match: TemplateMatch) -> object:
        """Return the argument, read from the matched instruction."""
        return self.of(match.instructions[self.instruction].op)

    def of(self, op: Op) -> object:
        """Return the argument, read from an op like that of the instruction."""
        value: object = getattr(op, self.attribute)
        array = getattr(value, "array", None)
        if array is not None and array.size == 1:  # a literal
            value = array.item()
        return self.absent if value is None else self.conversion(value)


def readers_of(
    names: Sequence[str], calls: Sequence[tuple[Call, Program]], same: Same
) -> dict[str, Reader]:
    """Return a reader for each argument in `names` that can be read off the first call.

    `calls` look alike. A place will do if in every one of them it holds what was given for the
    argument, and if that, put in its place, is captured as the `same` program: what is read is
    rounded to the element type of the program, and a place could hold an equal number by chance.
    """
    (_, program), *_ = calls
    readers: dict[str, Reader] = {}
    for name in names:
        for reader in _places(program):
            found = _fitting(name, reader, calls, same)
            if found is not None:
                readers[name] = found
                break
    return readers


def _places(program: Program) -> Iterator[Reader]:
    for made in program.main.body.instructions:
        if isinstance(made.op, CustomCall):
            continue  # it stands for a composite, which looks alike in all calls
        for attribute in made.op.attribute_types:
            for conversion in _CONVERSIONS:
                yield Reader(made, attribute, conversion)


def _fitting(
    name: str, reader: Reader, calls: Sequence[tuple[Call, Program]], same: Same
) -> Reader | None:
    """Return the reader with its value for an absent attribute; None if it fails for a call."""
    (_, first), *_ = calls
    number = first.main.body.instructions.index(reader.instruction)
    ops = [program.main.body.instructions[number].op for _, program in calls]
    absent = [
        call[name]
        for (call, _), op in zip(calls, ops, strict=True)
        if getattr(op, reader.attribute) is None
    ]
    if len(absent) == len(calls):
        return None
    reader = replace(reader, absent=absent[0] if absent else None)
    for (call, program), op in zip(calls, ops, strict=True):
        try:
            value = reader.of(op)
        except (TypeError, ValueError):  # of another kind than the conversion takes
            return None
        if not _equal(value, call[name]) or not same({**call, name: value}, program):
            return None
    return reader


def _equal(found: object, given: object) -> bool:
    if isinstance(given, tuple) and isinstance(found, tuple):
        several = cast("tuple[object, ...]", found), cast("tuple[object, ...]", given)
        if len(several[0]) != len(several[1]):
            return False
        return all(_equal(a, b) for a, b in zip(*several, strict=True))
    if isinstance(given, float) and isinstance(found, float):
        return math.isclose(found, given, rel_tol=_ROUNDING)
    return found == given and isinstance(found, int) == isinstance(given, int)
