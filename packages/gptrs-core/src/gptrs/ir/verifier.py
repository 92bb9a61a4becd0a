"""Checks a whole program, however it was made: after it passed, a backend may trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import OPS
from gptrs.ir.program import Function, Instruction, Program, Value
from gptrs.ir.tensor_type import TensorType

MAX_BYTES = 2**47
"""Most bytes a value may take: what a process can address."""


def verify(program: Program) -> None:
    """ProgramError for the first rule of PTIR that `program` breaks, in the order of its text.

    Function names are identifiers, distinct, and one is `main`. In each function the parameters
    have distinct names; every value is defined once in the program, and before it is read; every
    op is registered, its attributes and operands are as its class demands and its results have the
    types that it infers; no value is too large. Takes time linear in the size of the program.
    """
    names: set[str] = set()
    for function in program.functions:
        if not IDENTIFIER.fullmatch(function.name):
            raise ProgramError(f"a function cannot be called `{function.name}`")
        if function.name in names:
            raise ProgramError(f"two functions are called `@{function.name}`")
        names.add(function.name)
    if "main" not in names:
        raise ProgramError("a program needs a function called `@main`")
    defined: set[Value] = set()
    for function in program.functions:
        _Verifier(function, defined).run()


def require_bounded(type_: TensorType) -> None:
    """ProgramError unless `type_` is made of the right parts and a value of it can exist."""
    if type(type_.shape) is not tuple or any(type(dim) is not int for dim in type_.shape):
        raise ProgramError(f"a shape is a tuple of integers, got `{type_.shape!r}`")
    if not any(type_.dtype is dtype for dtype in dtypes.ALL):
        raise ProgramError(f"`{type_.dtype}` is not one of the dtypes of PTIR")
    # As in TensorType: strides are computed from the other dims even where one is 0.
    if math.prod(dim for dim in type_.shape if dim) * type_.dtype.itemsize > MAX_BYTES:
        raise ProgramError(f"`{type_}` takes more than 2^47 bytes")


class _Verifier:
    def __init__(self, function: Function, defined: set[Value]) -> None:
        self._function = function
        self._defined = defined
        self._visible: set[Value] = set()
        self._where = f"`@{function.name}`"

    def run(self) -> None:
        body = self._function.body
        names: set[str] = set()
        for param in body.params:
            if param.name in names:
                raise self._error(f"parameter `%{param.name}` is defined twice")
            if param.name is not None:
                names.add(param.name)
        self._define(body.params)
        for index, instruction in enumerate(body.instructions):
            self._where = f"instruction {index} of `@{self._function.name}`"
            self._check(instruction)
            self._define(instruction.results)
        self._where = f"the results of `@{self._function.name}`"
        self._require_visible(body.results)

    def _check(self, instruction: Instruction) -> None:
        op = instruction.op
        name: object = getattr(op, "name", None)
        if not isinstance(name, str) or OPS.get(name) is not type(op):
            raise self._error(f"`{type(op).__name__}` is not a registered op")
        self._require_visible(instruction.operands)
        try:
            inferred = op.result_types([operand.type for operand in instruction.operands])
        except ProgramError as error:
            raise self._error(str(error)) from error
        stated = tuple(result.type for result in instruction.results)
        if stated != inferred:
            want, have = (", ".join(map(str, types)) for types in (inferred, stated))
            raise self._error(f"`{op.name}` gives ({want}), not ({have})")

    def _define(self, values: Sequence[Value]) -> None:
        for value in values:
            if value in self._defined:
                raise self._error(f"a value of type `{value.type}` is defined twice")
            self._defined.add(value)
            self._visible.add(value)
            try:
                require_bounded(value.type)
            except ProgramError as error:
                raise self._error(str(error)) from error

    def _require_visible(self, values: Sequence[Value]) -> None:
        for value in values:
            if value not in self._visible:
                raise self._error(f"a value of type `{value.type}` is read before it is defined")

    def _error(self, reason: str) -> ProgramError:
        return ProgramError(f"{self._where}: {reason}")
