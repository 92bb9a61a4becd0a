"""Equal layers of a program: stretches of instructions that follow one another and are alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gptrs.ir.ops.control_flow import Call
from gptrs.ir.program import Instruction, Region, Value
from gptrs.quick_dataclass import dataclass

LEAST = 3
"""Layers from which on they are one."""
SHORTEST = 4
"""Instructions of a layer at least, unless it is a call: fewer are no layer."""
_TRIES = 4
"""Periods that are tried at an instruction: the distances to the next ones that are alike."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """`count` layers of `period` instructions each, from instruction `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The number of the first instruction after it."""
        return self.start + self.period * self.count


def repeats_of(region: Region) -> list[Repeat]:
    """Return the equal layers of a region, in order.

    Layers are equal if their ops, attributes and types are, and if an instruction reads what is at
    the same place in its layer, at the same distance in an earlier one, or before them. A layer is
    a call, or at least `SHORTEST` instructions.
    """
    found: list[Repeat] = []
    kinds = _kinds(region.instructions)
    origin = {value: at for at, each in enumerate(region.instructions) for value in each.results}
    at = 0
    while at < len(kinds):
        repeat = _repeat_at(at, region.instructions, kinds, origin)
        if repeat is None:
            at += 1
        else:
            if repeat.period >= SHORTEST or isinstance(region.instructions[at].op, Call):
                found.append(repeat)
            at = repeat.end
    return found


def _kinds(instructions: Sequence[Instruction]) -> list[int]:
    """Return a number for each instruction, the same for those that are alike by themselves."""
    numbers: dict[Hashable, int] = {}
    kinds: list[int] = []
    for at, each in enumerate(instructions):
        types = tuple(value.type for value in (*each.operands, *each.results))
        # Instructions with regions are compared by nothing: each is its own kind.
        key = at if each.regions else (each.op, types)
        kinds.append(numbers.setdefault(key, len(numbers)))
    return kinds


def _repeat_at(
    at: int, instructions: Sequence[Instruction], kinds: Sequence[int], origin: dict[Value, int]
) -> Repeat | None:
    tries = 0
    for other in range(at + 1, (at + len(kinds)) // 2 + 1):
        if kinds[other] != kinds[at]:
            continue
        period = other - at
        count = _count(at, period, instructions, kinds, origin)
        if count >= LEAST:
            return Repeat(at, period, count)
        tries += 1
        if tries == _TRIES:
            return None
    return None


def _count(
    at: int,
    period: int,
    instructions: Sequence[Instruction],
    kinds: Sequence[int],
    origin: dict[Value, int],
) -> int:
    first = kinds[at : at + period]
    layers = [_wiring(at, at, period, instructions, origin)]
    while True:
        start = at + period * len(layers)
        if kinds[start : start + period] != first:
            return len(layers)
        wiring = _wiring(at, start, period, instructions, origin)
        if len(layers) == 1:
            pairs = zip(layers[0], wiring, strict=True)
            same = all(one == two if two >= 0 else one == -1 for one, two in pairs)
        else:
            same = wiring == layers[1]
        if not same:
            return len(layers)
        layers.append(wiring)


def _wiring(
    first: int,
    start: int,
    period: int,
    instructions: Sequence[Instruction],
    origin: dict[Value, int],
) -> list[int]:
    """Return where each operand of the layer from `start` on is made.

    In the layer itself: its place there. In an earlier layer: -1 less the distance to it. Before
    the `first` layer: -1.
    """
    places = [
        origin.get(operand, -1)
        for each in instructions[start : start + period]
        for operand in each.operands
    ]
    return [
        place - start if place >= start else place - start - 1 if place >= first else -1
        for place in places
    ]
