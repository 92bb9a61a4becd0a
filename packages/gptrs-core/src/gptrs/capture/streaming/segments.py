"""Cuts a program into consecutive parts that each read few bytes of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from gptrs.backend.contract import InputRole
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.specialize import symbol_sources
from gptrs.optimizer.evaluation import CHEAP, Definitions


class Segment(Struct, frozen=True):
    """A part of a program as a separate program, with the indices of its inputs and outputs.

    Values of the whole program are numbered: first its parameters, then the results of segments.
    """

    program: Program
    roles: tuple[InputRole, ...]
    inputs: tuple[int, ...]
    """The value behind each parameter of `@main`."""
    outputs: tuple[int, ...]
    """The number that each result of `@main` gets."""
    dying: tuple[int, ...]
    """The inputs that no later segment reads and that are not results, so that they may be
    freed."""
    tables: frozenset[int]
    """The inputs that it reads only by rows."""


class Segments(Struct, frozen=True):
    """The parts of a program in their order."""

    parts: tuple[Segment, ...]
    results: tuple[int, ...]
    """The numbers of the results."""
    count: int
    """The number of values."""


def borders(region: Region, streamed: Collection[Value], share: int) -> list[int]:
    """Return the instructions that begin a part, so that it reads at most `share` bytes.

    An instruction that reads more is a separate part; a part begins with an instruction that reads
    weights that the previous part does not. Tables that are read by rows do not count.
    """
    found: list[int] = []
    read: set[Value] = set()
    for position, made in enumerate(region.instructions):
        own = set(made.operands).intersection(streamed) - _tables([made])
        if read and own - read and sum(value.type.nbytes for value in read | own) > share:
            found.append(position)
            read.clear()
        read |= own
    return found


def cut(
    program: Program,
    roles: Sequence[InputRole],
    streamed: Collection[Value],
    starts: Sequence[int],
    cheap: Definitions | None = None,
) -> Segments:
    """Cut `@main` before the instructions at `starts`, which ascend.

    Cheap values without operands, such as constants, are recomputed in each part that reads them:
    those of `cheap`, by default all of them.
    Values are donated at their last use, unless the caller of the whole program keeps them; the
    parameters `streamed` get the role of that name. A result that is a parameter, or is returned
    twice, comes from the last part, where the backend gives it separate memory. If the program has
    symbols, each part has inputs that carry all of their sizes.
    """
    region = program.main.body
    free = cheap_values(region.instructions) if cheap is None else cheap
    anywhere = set(free.values())
    limits = [0, *starts, len(region.instructions)]
    groups = [
        [made for made in region.instructions[start:end] if made not in anywhere]
        for start, end in pairwise(limits)
    ]
    others = tuple(made for made in program.functions if made.name != "main")
    return _Cutter(region, roles, frozenset(streamed), others, free, groups).segments()


def _tables(instructions: Iterable[Instruction]) -> set[Value]:
    """Return the values that these instructions read only by rows."""
    rows: set[Value] = set()
    whole: set[Value] = set()
    for made in instructions:
        by_row = made.operands[:1] if isinstance(made.op, Take) else ()
        rows.update(by_row)
        whole.update(made.operands[len(by_row) :])
    return rows - whole


def cheap_values(
    instructions: Sequence[Instruction], among: Collection[Instruction] | None = None
) -> Definitions:
    """Return the instruction behind each value that is cheap to compute in any part.

    With `among`, only instructions among these count.
    """
    found: Definitions = {}
    for made in instructions:
        if not isinstance(made.op, CHEAP) or (among is not None and made not in among):
            continue
        if all(operand in found for operand in made.operands):
            found[made.results[0]] = made
    return found


class _Cutter:
    def __init__(
        self,
        region: Region,
        roles: Sequence[InputRole],
        streamed: Collection[Value],
        others: tuple[Function, ...],
        free: Definitions,
        groups: Sequence[Sequence[Instruction]],
    ) -> None:
        self._region = region
        self._roles = roles
        self._streamed = streamed
        self._others = others
        self._free = free
        self._groups = groups
        self._numbers = {param: number for number, param in enumerate(region.params)}
        self._count = len(region.params)
        times = Counter(region.results)
        self._late = [
            value
            for value in region.results
            if times[value] > 1 or value in self._numbers or value in free
        ]
        """The results that the last part must return."""
        self._plain = set(region.results).difference(self._late)
        self._last_use = self._last_uses()
        self._tellers = self._size_tellers()

    def segments(self) -> Segments:
        parts = [self._segment(position) for position in range(len(self._groups))]
        late = iter(parts[-1].outputs[len(parts[-1].outputs) - len(self._late) :])
        results = [
            self._numbers[value] if value in self._plain else next(late)
            for value in self._region.results
        ]
        return Segments(tuple(parts), tuple(results), self._count)

    def _last_uses(self) -> dict[Value, int]:
        """Return the last part that reads each value; results of the program outlive all parts."""
        last = dict.fromkeys(self._late, len(self._groups) - 1)
        for position, group in enumerate(self._groups):
            for made in group:
                for value in made.operands:
                    last[value] = max(position, last.get(value, 0))
        return last | dict.fromkeys(self._plain, len(self._groups))

    def _size_tellers(self) -> list[list[Value]]:
        """Return for each part live values that have each symbol as a plain dim.

        If no such value is alive any more, a parameter is kept alive for it.
        """
        params = list(self._region.params)
        sources = symbol_sources(params)
        alive = [*params]
        found: list[list[Value]] = []
        for position, group in enumerate(self._groups):
            alive = [v for v in alive if self._last_use.get(v, -1) >= position]
            known = symbol_sources(alive)
            kept = {
                number: params[at] for number, (at, _) in sources.items() if number not in known
            }
            self._last_use |= dict.fromkeys(kept.values(), position)
            tellers = {number: alive[at] for number, (at, _) in known.items()} | kept
            found.append(list(dict.fromkeys(tellers.values())))
            alive += [*kept.values(), *(value for made in group for value in made.results)]
        return found

    def _segment(self, position: int) -> Segment:
        group = self._groups[position]
        late = self._late if position == len(self._groups) - 1 else []
        made_here = [value for made in group for value in made.results]
        kept = [value for value in made_here if self._last_use.get(value, 0) > position]
        wanted = [value for made in group for value in made.operands] + late
        wanted += self._tellers[position]
        instructions = [*self._freed(wanted), *group]
        defined = {value for made in instructions for value in made.results}
        params = [value for value in dict.fromkeys(wanted) if value not in defined]
        body = Region(tuple(params), tuple(instructions), (*kept, *late))
        outputs = tuple(range(self._count, self._count + len(body.results)))
        dying = [value for value in params if self._last_use[value] == position]
        segment = Segment(
            Program((*self._others, Function("main", body))),
            tuple(self._role(value, value in dying) for value in params),
            tuple(self._numbers[value] for value in params),
            outputs,
            tuple(self._numbers[value] for value in dying),
            frozenset(self._numbers[v] for v in _tables(instructions).intersection(params)),
        )
        self._count += len(outputs)
        # `outputs` continues with the late results of the last part, which no later part reads.
        self._numbers.update(zip(kept, outputs, strict=False))
        return segment

    def _freed(self, wanted: Iterable[Value]) -> list[Instruction]:
        """Return the instructions that define the cheap values among `wanted`, operands first."""
        needed: set[Value] = set()
        pending = [value for value in wanted if value in self._free]
        while pending:
            value = pending.pop()
            if value not in needed:
                needed.add(value)
                pending.extend(self._free[value].operands)
        return [made for value, made in self._free.items() if value in needed]

    def _role(self, value: Value, dies: bool) -> InputRole:
        if value in self._streamed:
            return InputRole.STREAMED
        number = self._numbers[value]
        role = self._roles[number] if number < len(self._roles) else InputRole.DONATED
        return InputRole.ARGUMENT if role is InputRole.DONATED and not dies else role
