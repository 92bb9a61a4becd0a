"""Assigns the instructions of a program to a backend or to its fallback, in few, large parts.

Parts run one after another, and the sides alternate. An instruction joins the earliest part of its
side that follows its operands, so the number of parts is the least possible for an order of sides,
and no part depends on a later one (convexity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from gptrs.backend.contract import Backend, InputRole
from gptrs.backend.op_table import refusals_of
from gptrs.capture.streaming.segments import Segment, Segments, cheap_values, cut
from gptrs.errors import UnsupportedError
from gptrs.ir.ops.creation import Constant, Iota
from gptrs.ir.ops.layout import BroadcastTo, Concat, Pad, Reshape, Reverse, Slice, Tile, Transpose
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.symbolic_dim import evaluated

_MOVES = (Constant, Iota, BroadcastTo, Concat, Pad, Reshape, Reverse, Slice, Tile, Transpose)
"""Ops that compute nothing: they join the part of their neighbours, on either side."""

Sizes = Mapping[int, int]
"""Example sizes of symbols, which decide between two places for the same instruction."""


class Partition(Struct, frozen=True):
    """The parts of a program in their order, and the side of each."""

    pieces: Segments
    home: tuple[bool, ...]
    """Whether the backend itself runs each part, not its fallback."""
    refused: tuple[str, ...]
    """Reasons why the backend refuses instructions."""


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
    elsewhere = {made: tuple(refusals_of(fallback, program, [made])) for made in main.instructions}
    _require_one(backend, fallback, refused, elsewhere)
    both = {made for made in main.instructions if not refused[made] and not elsewhere[made]}
    cheap = cheap_values(main.instructions, both)
    anywhere = set(cheap.values())
    placed = [made for made in main.instructions if made not in anywhere]
    at_home: dict[Instruction, bool | None] = {
        made: None if made in both and isinstance(made.op, _MOVES) else not refused[made]
        for made in placed
    }
    layout = _Layout(placed, main, at_home, sizes)
    layout.drop_small(backend.smallest_part, both)
    ordered, sides = layout.order()
    starts = [at for at, (a, b) in enumerate(pairwise(sides), 1) if a is not b]
    body = Region(main.params, (*cheap.values(), *ordered), main.results)
    functions = tuple(made for made in program.functions if made.name != "main")
    whole = Program((*functions, Function("main", body)))
    pieces = cut(whole, roles, (), [len(cheap) + at for at in starts], cheap)
    home = tuple(sides[at] for at in (0, *starts))
    parts = tuple(map(_weights_last, pieces.parts))
    return Partition(Segments(parts, pieces.results, pieces.count), home, reasons)


def _require_one(
    backend: Backend,
    fallback: Backend,
    refused: Mapping[Instruction, tuple[str, ...]],
    elsewhere: Mapping[Instruction, tuple[str, ...]],
) -> None:
    """Raise UnsupportedError if an instruction, with all that it contains, runs on neither."""
    neither = [made for made, reasons in refused.items() if reasons and elsewhere[made]]
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
    weights = (InputRole.PARAMETER, InputRole.CONSTANT)
    given = zip(part.program.main.body.params, part.roles, part.inputs, strict=True)
    ordered = sorted(given, key=lambda each: each[1] in weights)
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
    """The part of each instruction, by number: even ones are on the side `first`."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        region: Region,
        at_home: dict[Instruction, bool | None],
        sizes: Sizes,
    ) -> None:
        self._instructions = instructions
        self._at_home = at_home
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

    def order(self) -> tuple[list[Instruction], list[bool]]:
        """Return the instructions in the order of their parts, and the side of each."""
        ordered = sorted(self._instructions, key=self._part.__getitem__)
        return ordered, [self._side(self._part[made]) for made in ordered]

    def _choose(self) -> None:
        """Number the parts, from the side that needs fewer; from home if both need as many."""
        found = [(self._numbered(first), first) for first in (True, False)]
        self._part, self._first = min(found, key=lambda each: max(each[0].values(), default=0))
        self._sink()

    def _numbered(self, first: bool) -> dict[Instruction, int]:
        part: dict[Instruction, int] = {}
        for made in self._instructions:
            least = max((part[source] for source in self._sources(made)), default=0)
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
            if here is there:
                continue
            after = sum(self._nbytes(v) for v in made.operands if self._is_from(v) is not there)
            if after < sum(map(self._nbytes, made.results)):
                self._part[made] = then

    def _is_from(self, value: Value) -> bool:
        """Return the side that makes `value`; inputs of the program are at home."""
        made = self._maker.get(value)
        return True if made is None else self._side(self._part[made])

    def _side(self, part: int) -> bool:
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
