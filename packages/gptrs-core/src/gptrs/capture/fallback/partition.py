"""Assigns the instructions of a program to a backend or to its fallback, in few, large parts.

Parts run one after another, and the sides alternate. An instruction joins the earliest part of its
side that follows its operands, so the number of parts is the least possible for an order of sides,
and no part depends on a later one (convexity). A loop or branch with a refused op in it is a part
of its own, run by the host, if what the backend computes inside is worth the copies in each step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from gptrs.backend.contract import Backend, InputRole
from gptrs.backend.op_table import refusals_of
from gptrs.capture.fallback.host_loops import HostLoop, host_loop
from gptrs.capture.streaming.segments import Segment, Segments, cheap_values, cut
from gptrs.errors import UnsupportedError
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Cond
from gptrs.ir.ops.creation import Constant, Iota
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.indexing import DynamicUpdateSlice, Take
from gptrs.ir.ops.layout import BroadcastTo, Concat, Pad, Reshape, Reverse, Slice, Tile, Transpose
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.symbolic_dim import evaluated

_MOVES = (Constant, Iota, BroadcastTo, Concat, Pad, Reshape, Reverse, Slice, Tile, Transpose)
"""Ops that compute nothing: they join the part of their neighbours, on either side."""
_HEAVY = (DotGeneral, CustomCall)
"""Ops that are worth the copies in each step of a loop: sums of products, and kernels of whole
functionals, which only the backend that claimed them has."""
_BY_STEP = (*_MOVES, Take, DynamicUpdateSlice)
"""Ops for which alone no loop is cut: reading and writing the rows of a step computes nothing."""

WEIGHTS = (InputRole.PARAMETER, InputRole.CONSTANT)
"""Roles whose buffers are the same objects in every run: `run_bound` binds them, and copies of them
are kept."""
Sizes = Mapping[int, int]
"""Example sizes of symbols, which decide between two places for the same instruction."""


class Partition(Struct, frozen=True):
    """The parts of a program in their order, and the side of each."""

    pieces: Segments
    home: tuple[bool | None, ...]
    """Whether the backend itself runs each part, not its fallback; None: the host runs the loop or
    branch that is its last instruction."""
    refused: tuple[str, ...]
    """Reasons why the backend refuses instructions."""

    def computes_at_home(self, smallest: int) -> bool:
        """Return whether the backend computes with `smallest` instructions of a part, or inside."""
        return any(
            home is None or (home and _computing(part.program.main.body, _BY_STEP) >= smallest)
            for part, home in zip(self.pieces.parts, self.home, strict=True)
        )


def partition(
    program: Program,
    roles: Sequence[InputRole],
    backend: Backend,
    fallback: Backend,
    sizes: Sizes,
) -> Partition | None:
    """Return how `program` is cut, None if `backend` runs all of it.

    `@main` must call no function. UnsupportedError names what neither of both runs. With symbolic
    dims it is called in a `deciding` block, like `refusal`.
    """
    main = program.main.body
    refused = {made: tuple(refusals_of(backend, program, [made])) for made in main.instructions}
    reasons = tuple(dict.fromkeys(reason for each in refused.values() for reason in each))
    if not reasons:
        return None
    loops = {
        made
        for made in main.instructions
        if refused[made] and cuts_inside(program, made, backend, fallback, sizes)
    }
    elsewhere = {made: tuple(refusals_of(fallback, program, [made])) for made in main.instructions}
    rest = [made for made in main.instructions if made not in loops]
    _require_one(backend, fallback, rest, refused, elsewhere)
    both = {made for made in rest if not refused[made] and not elsewhere[made]}
    # The host reads operands of loops as values; a value that each part computes is none.
    cheap = cheap_values(main.instructions, both - _read_by(loops, main))
    anywhere = set(cheap.values())
    placed = [made for made in main.instructions if made not in anywhere]
    at_home: dict[Instruction, bool | None] = {
        made: None if made in both and isinstance(made.op, _MOVES) else not refused[made]
        for made in placed
    }
    layout = _Layout(placed, main, at_home, loops, sizes)
    layout.drop_small(backend.smallest_part, both)
    ordered, sides = layout.order()
    starts = [at for at, (a, b) in enumerate(pairwise(sides), 1) if a is not b or a is None]
    if sides[-1] is None and _returned_late(main, cheap):
        # A loop cannot return what a last part has to: that is a part without instructions.
        starts.append(len(sides))
        sides.append(True)
    body = Region(main.params, (*cheap.values(), *ordered), main.results)
    functions = tuple(made for made in program.functions if made.name != "main")
    ordered_program = Program((*functions, Function("main", body)))
    pieces = cut(ordered_program, roles, (), [len(cheap) + at for at in starts], cheap)
    home = tuple(sides[at] for at in (0, *starts))
    parts = tuple(map(_weights_last, pieces.parts))
    return Partition(Segments(parts, pieces.results, pieces.count), home, reasons)


def whole(program: Program, roles: Sequence[InputRole]) -> Partition:
    """Return a program that the backend runs in one part."""
    pieces = cut(program, roles, (), (), {})
    (part,) = pieces.parts
    return Partition(Segments((_weights_last(part),), pieces.results, pieces.count), (True,), ())


def loop_of(part: Segment) -> HostLoop:
    """Return the loop or branch that the host runs as a part of a program."""
    main = part.program.main.body
    (made,) = main.instructions
    roles = dict(zip(main.params, part.roles, strict=True))
    tellers = [param for param in main.params if param not in made.operands]
    found = host_loop(made, part.program.functions, roles, tellers)
    assert found is not None, "`cuts_inside` has made it once"
    return found


def cuts_inside(
    program: Program, made: Instruction, backend: Backend, fallback: Backend, sizes: Sizes
) -> bool:
    """Return whether the host runs an instruction, so that its regions are cut into parts.

    It must if neither backend runs all of a loop or branch. Else it does where `backend` computes
    at least its `smallest_part` in a part of a region; in a loop, something heavy. UnsupportedError
    as for `partition`.
    """
    loop = host_loop(made, program.functions, {}, ())
    if loop is None:
        return False
    must = bool(refusals_of(fallback, program, [made]))
    if not must and not isinstance(made.op, Cond) and not _heavy(program, made, backend):
        return False
    smallest = backend.smallest_part
    try:
        found = [
            (each.program.main.body, partition(each.program, each.roles, backend, fallback, sizes))
            for each in loop.inner
        ]
    except UnsupportedError:
        # The fallback may lack what the host adds, and yet run the loop.
        if must:
            raise
        return False
    return must or any(
        _computing(region, _BY_STEP) >= smallest
        if cut_ is None
        else cut_.computes_at_home(smallest)
        for region, cut_ in found
    )


def _heavy(program: Program, loop: Instruction, backend: Backend) -> bool:
    inner = [made for region in loop.regions for made in region.walk()]
    return any(
        isinstance(made.op, _HEAVY) and not refusals_of(backend, program, [made]) for made in inner
    )


def _returned_late(region: Region, cheap: Collection[Value]) -> bool:
    """Return whether a result is a parameter, returned twice, or made in each part it is read."""
    elsewhere = {*region.params, *cheap}
    twice = len(set(region.results)) < len(region.results)
    return twice or not elsewhere.isdisjoint(region.results)


def _computing(region: Region, moves: tuple[type[Op], ...]) -> int:
    return sum(not isinstance(made.op, moves) for made in region.instructions)


def _read_by(loops: Iterable[Instruction], region: Region) -> set[Instruction]:
    """Return the instructions on which operands of `loops` depend, those that cost little."""
    makers = {value: made for made in region.instructions for value in made.results}
    found: set[Instruction] = set()
    pending = [value for loop in loops for value in loop.operands]
    while pending:
        made = makers.get(pending.pop())
        if made is not None and isinstance(made.op, _MOVES) and made not in found:
            found.add(made)
            pending += made.operands
    return found


def _require_one(
    backend: Backend,
    fallback: Backend,
    whole: Iterable[Instruction],
    refused: Mapping[Instruction, tuple[str, ...]],
    elsewhere: Mapping[Instruction, tuple[str, ...]],
) -> None:
    """Raise UnsupportedError if an instruction, with all that it contains, runs on neither."""
    neither = [made for made in whole if refused[made] and elsewhere[made]]
    if neither:
        shown = "; ".join(dict.fromkeys(refused[made][0] for made in neither[:5]))
        lacking = "; ".join(dict.fromkeys(elsewhere[made][0] for made in neither[:5]))
        raise UnsupportedError(
            f"backend `{backend.name}` does not support {shown}, nor does `{fallback.name}`, to"
            f" which it falls back, support {lacking}",
            hint="choose another backend with --backend, see `gptrs list backends`",
        )


def _weights_last(part: Segment) -> Segment:
    """Return the part with the weights as its last inputs, as `run_bound` needs them."""
    given = zip(part.program.main.body.params, part.roles, part.inputs, strict=True)
    ordered = sorted(given, key=lambda each: each[1] in WEIGHTS)
    main = part.program.main.body
    body = Region(tuple(param for param, _, _ in ordered), main.instructions, main.results)
    others = tuple(made for made in part.program.functions if made.name != "main")
    return Segment(
        Program((*others, Function("main", body))),
        tuple(role for _, role, _ in ordered),
        tuple(number for _, _, number in ordered),
        part.outputs,
        part.dying,
        part.tables,
    )


class _Layout:
    """The part of each instruction, by number: even ones are on the side `first`.

    Loops that the host runs end a stage: they have its last number, and what reads their results
    is in a later stage.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        region: Region,
        at_home: dict[Instruction, bool | None],
        loops: Collection[Instruction],
        sizes: Sizes,
    ) -> None:
        self._instructions = instructions
        self._at_home = at_home
        self._loops = loops
        self._stage = 2 * len(instructions) + 2
        self._sizes = sizes
        self._maker = {value: made for made in instructions for value in made.results}
        self._params = set(region.params)
        self._results = set(region.results)
        self._readers: dict[Instruction, list[Instruction]] = {made: [] for made in instructions}
        for made in instructions:
            for source in self._sources(made):
                self._readers[source].append(made)
        self._choose()

    def drop_small(self, smallest: int, both: Iterable[Instruction]) -> None:
        """Give parts that compute with fewer than `smallest` instructions to the other side."""
        movable = set(both)
        while True:
            small: list[Instruction] = []
            for members in self._home_parts():
                computing = [made for made in members if self._at_home[made] is not None]
                if len(computing) < smallest and movable.issuperset(members):
                    small += members
            if not small:
                return
            self._at_home.update(dict.fromkeys(small, False))
            self._choose()

    def order(self) -> tuple[list[Instruction], list[bool | None]]:
        """Return the instructions in the order of their parts, and the side of each.

        None is that of loops that the host runs.
        """
        ordered = sorted(self._instructions, key=self._part.__getitem__)
        return ordered, [self._side(self._part[made]) for made in ordered]

    def _choose(self) -> None:
        """Number the parts, from the side that needs fewer; from home if both need as many."""
        found = [(self._numbered(first), first) for first in (True, False)]
        self._part, self._first = min(found, key=lambda each: len(set(each[0].values())))
        self._sink()

    def _numbered(self, first: bool) -> dict[Instruction, int]:
        part: dict[Instruction, int] = {}
        for made in self._instructions:
            sources = self._sources(made)
            least = max((part[each] + (each in self._loops) for each in sources), default=0)
            if made in self._loops:
                part[made] = least + self._stage - 1 - least % self._stage
                continue
            home = self._at_home[made]
            fits = home is None or home is (first if least % 2 == 0 else not first)
            part[made] = least if fits else least + 1
        return part

    def _sink(self) -> None:
        """Move ops that compute nothing to the part that reads them, if fewer bytes are copied."""
        for made in reversed(self._instructions):
            readers = self._readers[made]
            if self._at_home[made] is not None or not readers:
                continue
            if not self._results.isdisjoint(made.results):
                continue
            now, then = self._part[made], min(self._part[reader] for reader in readers)
            here, there = self._side(now), self._side(then)
            if here is there or there is None:
                continue
            after = sum(self._nbytes(v) for v in made.operands if self._is_from(v) is not there)
            if after < sum(map(self._nbytes, made.results)):
                self._part[made] = then

    def _is_from(self, value: Value) -> bool | None:
        """Return the side that makes `value`; inputs of the program are at home."""
        made = self._maker.get(value)
        return True if made is None else self._side(self._part[made])

    def _side(self, part: int) -> bool | None:
        if part % self._stage == self._stage - 1:
            return None
        return self._first if part % 2 == 0 else not self._first

    def _nbytes(self, value: Value) -> int:
        return evaluated(value.type.nbytes, self._sizes)

    def _sources(self, made: Instruction) -> list[Instruction]:
        return [self._maker[value] for value in made.operands if value in self._maker]

    def _home_parts(self) -> list[list[Instruction]]:
        found: dict[int, list[Instruction]] = {}
        for made in self._instructions:
            if self._side(self._part[made]):
                found.setdefault(self._part[made], []).append(made)
        return list(found.values())
