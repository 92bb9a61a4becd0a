"""Loops and branches that the host runs: their regions as programs, which are cut into parts.

The values of a loop have slots: first the operands, then values that tell sizes, then what the host
adds, such as the number of the step. A program takes its inputs from slots, and its results replace
what is in others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes
from gptrs.ir.builder import splice
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Cond, Scan, While
from gptrs.ir.ops.indexing import DynamicUpdateSlice, Take
from gptrs.ir.ops.layout import Reshape
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType

LASTING = (InputRole.PARAMETER, InputRole.CONSTANT, InputRole.STREAMED)
"""Roles that a value of the program has inside a loop, too."""
_NUMBER = dtypes.si64

Roles: TypeAlias = Mapping[Value, InputRole]


class Inner(Struct, frozen=True):
    """A region as a program: the slot of each parameter, and the slot that each result gets."""

    name: str
    """Such as "body of `while`"."""
    program: Program
    roles: tuple[InputRole, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class HostLoop(Struct, frozen=True):
    """A `while`, `scan` or `cond` that the host runs."""

    op: Op
    inner: tuple[Inner, ...]
    """In the order of the regions."""
    types: tuple[TensorType, ...]
    """The types of the slots."""
    owned: tuple[int, ...]
    """Operands that are overwritten: the loop needs memory of its own for them."""
    results: tuple[int, ...]
    """The slot of each result."""
    steps: int = 0
    """The number of steps of a `scan`, perhaps symbolic."""
    number: int = 0
    """The slot for the number of the step, of a `scan`."""
    starts: Mapping[int, int] = {}
    """The slots for `[number, 0, ..]`, by rank."""
    stacks: tuple[int, ...] = ()
    """The slots of stacked results, zeros at first."""


def host_loop(
    made: Instruction, functions: Sequence[Function], roles: Roles, tellers: Sequence[Value]
) -> HostLoop | None:
    """Return how the host runs a loop or branch; None for any other op, and for no steps.

    `functions` are those that regions refer to. `roles` has the roles of operands, where a donated
    one is read by nothing afterwards; those without one are arguments. `tellers` are values whose
    dims tell the sizes of symbols.
    """
    others = tuple(each for each in functions if each.name != "main")
    maker = _Maker(made, others, roles, tellers)
    match made.op:
        case While():
            return maker.while_loop()
        case Scan() as op if op.steps([value.type for value in made.operands]) >= 1:
            return maker.scan(op)
        case Cond():
            return maker.branch()
        case _:
            return None


class _Maker:
    def __init__(
        self,
        made: Instruction,
        functions: tuple[Function, ...],
        roles: Roles,
        tellers: Sequence[Value],
    ) -> None:
        self._made = made
        self._functions = functions
        self._count = len(made.operands)
        given = (*made.operands, *tellers)
        self._types = [value.type for value in given]
        self._roles = [roles.get(value, InputRole.ARGUMENT) for value in given]
        # What is read twice, and so would be two inputs in one memory, cannot be overwritten.
        twice = {value for value in made.operands if made.operands.count(value) > 1}
        self._shared = {at for at, value in enumerate(given) if value in twice}

    def while_loop(self) -> HostLoop:
        """The condition reads the state, the body replaces what it changes of it."""
        condition, body = self._made.regions
        changed = self._changed(self._count)
        names = "condition of `while`", "body of `while`"
        asked = self._inner(names[0], condition, (), (), ())
        return self._loop([asked, self._inner(names[1], body, changed, changed, changed)], changed)

    def branch(self) -> HostLoop:
        """Both branches take the operands without the predicate, slot 0."""
        first = self._slots([result.type for result in self._made.results])
        outputs = tuple(range(first, len(self._types)))
        overwritten = tuple(
            at
            for at in range(1, self._count)
            if self._roles[at] is InputRole.DONATED and at not in self._shared
        )
        kept = tuple(range(len(outputs)))
        inner = [
            self._inner(f"`{name}` of `cond`", region, kept, outputs, overwritten, 1)
            for name, region in zip(("then", "else"), self._made.regions, strict=True)
        ]
        return HostLoop(self._made.op, tuple(inner), tuple(self._types), (), outputs)

    def scan(self, op: Scan) -> HostLoop:
        """The body takes its rows by the number of the step, and writes into the stacks."""
        (region,) = self._made.regions
        stacks = [result.type for result in self._made.results[op.carry_count :]]
        number = self._slots([TensorType(_NUMBER, ())])
        ranks = sorted({type_.rank for type_ in stacks})
        starts = {rank: self._slots([TensorType(_NUMBER, (rank,))]) for rank in ranks}
        first = self._slots(stacks)
        stacked = tuple(range(first, len(self._types)))
        params = [Value(type_) for type_ in self._types]
        into: list[Instruction] = []
        rows = [
            _emitted(into, Take(), param, params[number])
            for param in params[op.carry_count : self._count]
        ]
        results = splice(region, [*params[: op.carry_count], *rows], into)
        changed = self._changed(op.carry_count)
        written = [
            _emitted(
                into,
                DynamicUpdateSlice(),
                params[stack],
                _emitted(into, Reshape((1, *row.type.shape)), row),
                params[starts[params[stack].type.rank]],
            )
            for stack, row in zip(stacked, results[op.carry_count :], strict=True)
        ]
        outputs = (*changed, *stacked)
        body = Region(tuple(params), tuple(into), (*(results[at] for at in changed), *written))
        made = self._program("body of `scan`", body, range(len(params)), outputs, outputs)
        loop = self._loop([made], changed)
        return replace(
            loop,
            results=(*range(op.carry_count), *stacked),
            steps=op.steps([value.type for value in self._made.operands]),
            number=number,
            starts=starts,
            stacks=stacked,
        )

    def _changed(self, carried: int) -> tuple[int, ...]:
        """Return the carried values that the body does not return as they are."""
        body = self._made.regions[-1]
        return tuple(at for at in range(carried) if body.results[at] is not body.params[at])

    def _loop(self, inner: Sequence[Inner], changed: Sequence[int]) -> HostLoop:
        owned = tuple(
            at for at in changed if self._roles[at] is not InputRole.DONATED or at in self._shared
        )
        results = tuple(range(len(self._made.results)))
        return HostLoop(self._made.op, tuple(inner), tuple(self._types), owned, results)

    def _slots(self, types: Iterable[TensorType]) -> int:
        """Add slots; return the number of the first."""
        first = len(self._types)
        self._types += types
        return first

    def _inner(
        self,
        name: str,
        region: Region,
        kept: Sequence[int],
        outputs: tuple[int, ...],
        overwritten: Sequence[int],
        skipped: int = 0,
    ) -> Inner:
        """Return a region that takes the operands after `skipped` as a program.

        It returns the results `kept`, or all, in `outputs`.
        """
        slots = range(skipped, len(self._roles))
        params = [Value(self._types[slot]) for slot in slots]
        into: list[Instruction] = []
        results = splice(region, params[: self._count - skipped], into)
        chosen = [results[at] for at in kept] if outputs else results
        body = Region(tuple(params), tuple(into), tuple(chosen))
        return self._program(name, body, slots, outputs, overwritten)

    def _program(
        self,
        name: str,
        body: Region,
        slots: Sequence[int],
        outputs: tuple[int, ...],
        overwritten: Sequence[int],
    ) -> Inner:
        roles = {slot: InputRole.DONATED for slot in overwritten}
        for slot, role in enumerate(self._roles):
            if role in LASTING:
                roles.setdefault(slot, role)
        program = Program((*self._functions, Function("main", body)))
        found = tuple(roles.get(slot, InputRole.ARGUMENT) for slot in slots)
        return Inner(name, Program(program.reachable()), found, tuple(slots), outputs)


def _emitted(into: list[Instruction], op: Op, *operands: Value) -> Value:
    types = op.result_types([value.type for value in operands], ())
    made = Instruction(op, operands, tuple(Value(type_) for type_ in types))
    into.append(made)
    return made.result
