"""Checks a whole program, however it was made: after it passed, a backend may trust it."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.bounds import MAX_EXPANDED, MAX_NESTING, require_bounded
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.op import OPS, Signature
from gptrs.ir.program import Function, Instruction, Program, Region, Value


def verify(program: Program) -> None:
    """Raise ProgramError for the first rule of PTIR that `program` breaks, in text order.

    Function names are identifiers, distinct, and one is `main`; a function refers to those defined
    before it. In each region the parameters have distinct names; every value is defined once in
    the program, and read in its own region only, after it is defined; every op is registered, its
    attributes, operands and regions are as its class demands and its results have the types that
    it infers; no value is too large, no nesting too deep, and no tree of calls too wide. Takes
    time linear in the size of the program.
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
        """Check a region; how many instructions it has, those of its callees included."""
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
