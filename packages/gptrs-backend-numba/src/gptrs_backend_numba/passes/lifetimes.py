"""Shorter lives of large values: early readers, and cheap values that are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gptrs.ir.ops import elementwise as ops
from gptrs.ir.program import Instruction, Region, Value

_CHEAP: Final = (ops.Unary, ops.Binary, ops.Select, ops.Clamp, ops.Cast)
_LARGE: Final = 1 << 16
"""Elements from which a value is worth it."""
_FAR: Final = 100
"""Instructions between a value and a far reader: the backward part of a model is that far."""
_DEEP: Final = 3
"""Most instructions in a row that move with one: a cotangent is transposed for a product."""
_NEAR: Final = 30
"""Instructions by which a value may live longer."""
_SEVERAL: Final = 4
_MOST_STEPS: Final = 4
"""Most instructions that compute a value again. SwiGLU has three. GELU has more: computing it takes
longer than reading it."""


def sparing(region: Region) -> Region:
    """Return the region with the results that it has, computed with less memory.

    The backward part of a model that learns needs many values of the forward part.
    """
    if not _reads_far(region):  # most models that do not learn, which are lowered for each size
        return region
    return _recomputed(_with_early_readers(region))


def _reads_far(region: Region) -> bool:
    """Return whether several large values are read many instructions after they were made.

    A network with one connection past all of its middle part is not worth the search.
    """
    made: dict[Value, int] = {}
    far: set[Value] = set()
    for position, each in enumerate(region.instructions):
        far.update(value for value in each.operands if position - made.get(value, position) > _FAR)
        if len(far) > _SEVERAL:
            return True
        if each.operands:  # constants are there anyway
            made.update((value, position) for value in each.results if _is_large(value))
    return False


def _with_early_readers(region: Region) -> Region:
    """Return the region with the last readers of large values as early as they can be.

    Programs are written from their results: the gradients of weights, which only the optimizer
    reads, come last, and would keep the inputs of all layers, and their cotangents, until then.
    """
    return _Order(region).region()


class _Order:
    """The order of the instructions of a region, from the one that they have."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._makers = {v: at for at, each in enumerate(region.instructions) for v in each.results}
        self._readers: dict[Value, list[int]] = {}
        for position, each in enumerate(region.instructions):
            for value in dict.fromkeys(each.operands):
                self._readers.setdefault(value, []).append(position)
        self._kept = {*region.params, *region.results}
        self._places = [*range(len(region.instructions))]
        """The instruction of the old order that each follows, its own number if it stays."""

    def region(self) -> Region:
        """Return the region in the new order."""
        old = self._region
        levels: list[int] = []
        for position in range(len(old.instructions)):
            levels.append(self._level(position, levels))
            if levels[-1] <= _DEEP:
                self._place(position)
        # Stable: what moves stays behind what it reads, and behind what moves there with it.
        order = sorted(range(len(old.instructions)), key=self._places.__getitem__)
        return Region(old.params, tuple(old.instructions[at] for at in order), old.results)

    def _level(self, position: int, levels: Sequence[int]) -> int:
        """Return by how many instructions that would move along a far value is read: 0 for its
        reader, more than any for most. Of those none moves, and to find that out takes longer."""
        found = _DEEP + 1
        for value in self._region.instructions[position].operands:
            maker = self._makers.get(value)
            if maker is None:
                continue
            if position - self._places[maker] > _FAR:
                return 0
            if self._readers[value] == [position]:
                found = min(found, levels[maker] + 1)
        return found

    def _place(self, position: int) -> None:
        """Move an instruction to where its operands are ready if that frees more than it makes."""
        instruction = self._region.instructions[position]
        with_it: list[int] = []
        ready = self._ready(position, with_it, _DEEP)
        sized = all(value.type.is_static for value in instruction.results)
        if position - ready <= _FAR or not instruction.operands or not sized:
            return
        ended = [
            value for value in dict.fromkeys(instruction.operands)
            if value not in self._kept and self._readers[value][-1] == position
            and all(self._places[at] <= ready + _NEAR for at in self._readers[value][:-1])
            and self._makers[value] not in with_it
        ]  # fmt: skip
        if _bytes(ended) > _bytes(instruction.results):
            for at in (position, *with_it):
                self._places[at] = min(self._places[at], ready)

    def _ready(self, position: int, with_it: list[int], depth: int) -> int:
        """Return the place at which the operands are ready; `with_it` are the instructions that
        make some of them for this one alone, and move there, too."""
        ready = -1
        for value in self._region.instructions[position].operands:
            maker = self._makers.get(value)
            if maker is None:
                continue
            place, inner = self._places[maker], [maker]
            if depth and self._readers[value] == [position] and value not in self._kept:
                early = self._ready(maker, inner, depth - 1)
                if place - early > _FAR:
                    with_it += inner
                    place = early
            ready = max(ready, place)
        return ready


def _bytes(values: Sequence[Value]) -> int:
    """Return the bytes of the values whose sizes are known."""
    return sum(value.type.nbytes for value in values if value.type.is_static)


class _Again(NamedTuple):
    """The instructions that compute a value again, the last one the value itself."""

    position: int
    """Where it is computed first."""
    steps: tuple[Instruction, ...]


def _recomputed(region: Region) -> Region:
    """Return the region with some elementwise values computed again right before far readers.

    Only from values that are in memory until then anyway. A gated layer of a model that learns
    keeps two tensors for the backward part, not five.
    """
    again = _computed_again(region)
    if not again:
        return region
    found: list[Instruction] = []
    made: dict[Value, tuple[int, Value]] = {}  # the latest copy of each, and where it was made
    for position, instruction in enumerate(region.instructions):
        operands = list(instruction.operands)
        for number, value in enumerate(operands):
            if value not in again or position - again[value].position <= _FAR:
                continue
            for step in again[value].steps:
                old = step.result
                if old not in made or position - made[old][0] > _FAR:
                    inputs = tuple(made[x][1] if x in again else x for x in step.operands)
                    made[old] = position, Value(old.type, old.name)
                    found.append(Instruction(step.op, inputs, (made[old][1],)))
            operands[number] = made[value][1]
        if tuple(operands) != instruction.operands:
            rest = instruction.results, instruction.regions
            instruction = Instruction(instruction.op, tuple(operands), *rest)
        found.append(instruction)
    return Region(region.params, tuple(found), region.results)


def _computed_again(region: Region) -> dict[Value, _Again]:
    """Return the values to compute again: far readers find all that they are computed from."""
    last = {v: at for at, each in enumerate(region.instructions) for v in each.operands}
    last |= dict.fromkeys(region.results, len(region.instructions))
    found: dict[Value, _Again] = {}
    for position, each in enumerate(region.instructions):
        if not isinstance(each.op, _CHEAP) or not _is_large(each.result):
            continue
        end = last.get(each.result, position)
        if end - position <= _FAR or end == len(region.instructions):
            continue
        inner = (step for x in each.operands if x in found for step in found[x].steps)
        steps = (*dict.fromkeys(inner), each)
        read = {x for step in steps for x in step.operands if x not in found}
        if len(steps) <= _MOST_STEPS and all(last[x] + _NEAR >= end for x in read):
            found[each.result] = _Again(position, steps)
    return found


def _is_large(value: Value) -> bool:
    type_ = value.type
    return type_.is_static and type_.size >= _LARGE and type_.dtype.is_float
