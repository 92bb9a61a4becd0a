"""The grouping of elementwise instructions into units that become one kernel each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from gptrs.ir.ops import elementwise as ops
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Instruction, Region, Value
from gptrs_backend_numba.codegen.separate_memory import MOST_RESULTS
from gptrs_backend_numba.kernels.elementwise_tasks import MOST_INPUTS, MOST_TENSORS

ELEMENTWISE = (
    ops.Unary, ops.Binary, ops.IsFinite, ops.Compare, ops.Select, ops.Clamp, ops.Cast
)  # fmt: skip
"""Classes of the ops that compute each element from those at the same position."""

_MOST_ARRAYS = 6
"""Most inputs of more than one element. Beyond these, LLVM gives up proving that the result
overlaps no input and stops vectorizing; numbers are read before its loop."""
_MOST_INSTRUCTIONS = 24
_LARGE = 1 << 16
"""Elements from which units are joined: below, operands are still in the L2 cache."""
_FAR = 64
"""Units between two that are joined, at most: what they read has left the caches beyond."""


class Unit(Struct, frozen=True, dict=True):
    """Instructions run by one kernel."""

    instructions: tuple[Instruction, ...]
    seen: tuple[Value, ...] = ()
    """The results that are seen from outside, if they are not those of the last one alone."""

    @property
    def last(self) -> Instruction:
        """Return the instruction that defines the results, or the last of them."""
        return self.instructions[-1]

    @property
    def results(self) -> tuple[Value, ...]:
        """Return the values that are seen from outside."""
        return self.seen or self.last.results

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Return the values that the unit reads and does not define, once each, in order of use."""
        made = {value for instruction in self.instructions for value in instruction.results}
        read = dict.fromkeys(value for step in self.instructions for value in step.operands)
        return tuple(value for value in read if value not in made)


def group(region: Region) -> list[Unit]:
    """Return all instructions as units, in an order that keeps definitions before uses.

    An elementwise instruction joins the one that reads its result if that is elementwise too and
    nothing else reads it: the value then never exists in memory.
    """
    uses = Counter(value for step in region.instructions for value in step.operands)
    uses.update(region.results)
    single = {step.result for step in region.instructions if _repeats_one(step)}
    open_units: dict[Value, Unit] = {}
    units: dict[Instruction, Unit] = {}
    for instruction in region.instructions:
        unit = Unit((instruction,))
        if isinstance(instruction.op, ELEMENTWISE):
            for operand in dict.fromkeys(instruction.operands):
                producer = open_units.get(operand)
                if producer is None or not _fits(
                    producer, unit, uses[operand], instruction, single
                ):
                    continue
                del units[producer.last]
                unit = Unit((*producer.instructions, *unit.instructions))
            open_units[instruction.result] = unit
        units[instruction] = unit
    return _joined(list(units.values()), uses)


def _repeats_one(step: Instruction) -> bool:
    """Return whether an instruction gives a tensor whose elements are all one number."""
    return isinstance(step.op, BroadcastTo) and step.operands[0].type.size == 1


def _fits(
    producer: Unit, unit: Unit, uses: int, reader: Instruction, single: Container[Value]
) -> bool:
    if uses != reader.operands.count(producer.last.result):
        return False
    together = Unit((*producer.instructions, *unit.instructions))
    arrays = sum(value not in single for value in together.inputs)
    return (
        len(together.instructions) <= _MOST_INSTRUCTIONS
        and len(together.inputs) <= MOST_INPUTS
        and arrays <= _MOST_ARRAYS
    )


# Units that read the same operands become one with several results.


def _joined(units: list[Unit], uses: Mapping[Value, int]) -> list[Unit]:
    """Return the units, those that share large operands as one, in an order that keeps definitions.

    AdamW is one unit of three results, and the backward pass of GELU one of two.
    """
    found: list[Unit | None] = [*units]
    makers = {value: at for at, unit in enumerate(units) for value in unit.results}
    readers: dict[Value, int] = {}
    for at, unit in enumerate(units):
        if not is_joinable(unit):
            continue
        tried: set[int] = {at}
        near = sorted({*_near(unit, makers, readers)} - tried)
        while near:
            tried.add(other := near.pop())
            together = _together(found, other, at, uses)
            if together is not None:
                found[other], found[at] = None, together
                unit = together
                near = sorted({*_near(unit, makers, readers)} - tried)
        makers |= dict.fromkeys(unit.results, at)
        readers |= dict.fromkeys((value for value in unit.inputs if _is_large(value)), at)
    return [unit for unit in found if unit is not None]


def _near(unit: Unit, makers: Mapping[Value, int], readers: Mapping[Value, int]) -> Iterator[int]:
    """Yield the positions of units that make or read large operands of a unit."""
    for value in filter(_is_large, unit.inputs):
        for at in (makers.get(value), readers.get(value)):
            if at is not None:
                yield at


def _is_large(value: Value) -> bool:
    """Return whether reading a value once more would cost a pass over memory."""
    type_ = value.type
    return type_.is_static and type_.size >= _LARGE


def is_joinable(unit: Unit) -> bool:
    """Return whether the kernel of a unit may have several results, which never fails."""
    steps = unit.instructions
    # All steps are elementwise or none, and most are ruled out by the last one.
    if not isinstance(unit.last.op, ELEMENTWISE) or not _is_large(unit.last.result):
        return False
    values = (value for step in steps for value in (*step.operands, *step.results))
    return all(value.type.dtype.is_float or value.type.dtype.is_bool for value in values)


def _together(
    units: Sequence[Unit | None], first: int, second: int, uses: Mapping[Value, int]
) -> Unit | None:
    """Return two units as one in the second's position; None if it is too large, or another unit
    reads a result of the first one before.
    """
    one, two = units[first], units[second]
    if one is None or two is None or second - first > _FAR:
        return None
    if one.last.result.type.shape != two.last.result.type.shape or not is_joinable(one):
        return None
    made = {*one.results}
    between = (unit for unit in units[first + 1 : second] if unit is not None)
    if any(not made.isdisjoint(unit.inputs) for unit in between):
        return None
    steps = (*one.instructions, *two.instructions)
    inside = Counter(value for step in steps for value in step.operands)
    seen = [value for step in steps for value in step.results if uses[value] > inside[value]]
    together = Unit(steps, tuple(seen))
    fits = (
        len(seen) <= MOST_RESULTS
        and len(together.inputs) + len(seen) <= MOST_TENSORS
        and len(steps) <= 2 * _MOST_INSTRUCTIONS
    )
    return together if fits else None
