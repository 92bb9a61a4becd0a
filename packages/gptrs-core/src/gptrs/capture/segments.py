"""Cuts a program into parts that run one after another and read few bytes of weights each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gptrs.backend.protocol import InputRole
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.evaluation import CHEAP


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a program as a program of its own, and how its values meet those of the others.

    Values of the whole program are known by number: first its parameters, then what segments give.
    """

    program: Program
    roles: tuple[InputRole, ...]
    inputs: tuple[int, ...]
    """The value behind each parameter of `@main`."""
    outputs: tuple[int, ...]
    """The number that each result of `@main` gets."""
    dying: tuple[int, ...]
    """The values that no later segment reads and that are no results."""
    tables: frozenset[int]
    """The values of which it takes single rows."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The parts of a program in their order, and which values are its results."""

    parts: tuple[Segment, ...]
    results: tuple[int, ...]
    count: int
    """How many values they know."""


def cut(
    program: Program, roles: Sequence[InputRole], streamed: Collection[Value], share: int
) -> Segments:
    """Cut `@main` so that a part reads at most `share` bytes of the `streamed` parameters.

    One instruction that reads more is a part of its own. What depends on nothing and costs nothing,
    such as a constant, is made anew in each part that reads it. What is read for the last time is
    donated, unless the caller of the whole program keeps it; a streamed parameter has the role of
    that name. Each result that is a parameter, or that is returned twice, comes out of the last
    part, where the backend sees to it that it has memory of its own.
    """
    region = program.main.body
    free = _free(region.instructions)
    groups = _groups(region.instructions, free, frozenset(streamed), share)
    others = tuple(made for made in program.functions if made.name != "main")
    return _Cutter(region, roles, frozenset(streamed), others, free).segments(groups)


def tables_of(instructions: Iterable[Instruction]) -> set[Value]:
    """The values that these instructions read by rows, and in no other way."""
    rows: set[Value] = set()
    whole: set[Value] = set()
    for made in instructions:
        by_row = made.operands[:1] if isinstance(made.op, Take) else ()
        rows.update(by_row)
        whole.update(made.operands[len(by_row) :])
    return rows - whole


def _free(instructions: Sequence[Instruction]) -> dict[Value, Instruction]:
    """What defines each value that can be had anywhere for nothing."""
    found: dict[Value, Instruction] = {}
    for made in instructions:
        if isinstance(made.op, CHEAP) and all(operand in found for operand in made.operands):
            found[made.results[0]] = made
    return found


def _groups(
    instructions: Sequence[Instruction],
    free: Mapping[Value, Instruction],
    streamed: Collection[Value],
    share: int,
) -> list[list[Instruction]]:
    groups: list[list[Instruction]] = [[]]
    read: set[Value] = set()
    for made in instructions:
        if any(result in free for result in made.results):
            continue
        # A row of a table is little, and is not in the way of what follows.
        own = set(made.operands).intersection(streamed) - tables_of([made])
        if read and own - read and sum(value.type.nbytes for value in read | own) > share:
            groups.append([])
            read.clear()
        groups[-1].append(made)
        read |= own
    return groups


@dataclass
class _Cutter:
    region: Region
    roles: Sequence[InputRole]
    streamed: Collection[Value]
    others: tuple[Function, ...]
    free: Mapping[Value, Instruction]
    numbers: dict[Value, int] = field(default_factory=dict[Value, int])
    count: int = 0

    def segments(self, groups: Sequence[Sequence[Instruction]]) -> Segments:
        self.numbers = {param: number for number, param in enumerate(self.region.params)}
        self.count = len(self.region.params)
        times = Counter(self.region.results)
        last_given = [
            value
            for value in self.region.results
            if times[value] > 1 or value in self.numbers or value in self.free
        ]
        plain = set(self.region.results) - set(last_given)
        last_use = {value: len(groups) - 1 for value in last_given}
        for position, group in enumerate(groups):
            for made in group:
                for value in made.operands:
                    last_use[value] = max(position, last_use.get(value, 0))
        parts: list[Segment] = []
        for position, group in enumerate(groups):
            made_here = [value for made in group for value in made.results]
            kept = [v for v in made_here if v in plain or last_use.get(v, -1) > position]
            given = last_given if position == len(groups) - 1 else []
            dying = {value for value, last in last_use.items() if last <= position} - plain
            parts.append(self._segment(group, kept, given, dying))
        given_last = iter(parts[-1].outputs[len(parts[-1].outputs) - len(last_given) :])
        results = [self.numbers[v] if v in plain else next(given_last) for v in self.region.results]
        return Segments(tuple(parts), tuple(results), self.count)

    def _segment(
        self,
        group: Sequence[Instruction],
        kept: Sequence[Value],
        given: Sequence[Value],
        dying: Collection[Value],
    ) -> Segment:
        instructions = [*self._freed([*(v for m in group for v in m.operands), *given]), *group]
        defined = {value for made in instructions for value in made.results}
        read = dict.fromkeys([*(v for made in instructions for v in made.operands), *given])
        params = [value for value in read if value not in defined]
        results = (*kept, *given)
        body = Region(tuple(params), tuple(instructions), results)
        outputs = tuple(range(self.count, self.count + len(results)))
        self.count += len(results)
        segment = Segment(
            Program((*self.others, Function("main", body))),
            tuple(self._role(value, value in dying) for value in params),
            tuple(self.numbers[value] for value in params),
            outputs,
            tuple(self.numbers[value] for value in params if value in dying),
            frozenset(self.numbers[v] for v in tables_of(instructions).intersection(params)),
        )
        self.numbers.update(zip(kept, outputs, strict=False))
        return segment

    def _freed(self, wanted: Iterable[Value]) -> list[Instruction]:
        """What makes those of the values that cost nothing, in an order that works."""
        needed: set[Value] = set()
        pending = [value for value in wanted if value in self.free]
        while pending:
            value = pending.pop()
            if value not in needed:
                needed.add(value)
                pending.extend(self.free[value].operands)
        return [made for value, made in self.free.items() if value in needed]

    def _role(self, value: Value, dies: bool) -> InputRole:
        number = self.numbers[value]
        if value in self.streamed:
            return InputRole.STREAMED
        role = self.roles[number] if number < len(self.roles) else InputRole.DONATED
        return InputRole.ARGUMENT if role is InputRole.DONATED and not dies else role
