"""The grouping of elementwise instructions into units that become one kernel each."""

from __future__ import annotations

from collections import Counter

from gptrs.ir.ops import elementwise as ops
from gptrs.ir.program import Instruction, Region, Value
from gptrs.quick_dataclass import dataclass

ELEMENTWISE = (
    ops.Unary, ops.Binary, ops.IsFinite, ops.Compare, ops.Select, ops.Clamp, ops.Cast
)  # fmt: skip
"""Classes of the ops that compute each element from those at the same position."""

_MOST_INPUTS = 6
"""Beyond these, LLVM gives up proving that the result overlaps no input and stops vectorizing."""
_MOST_INSTRUCTIONS = 24


@dataclass(frozen=True, slots=True)
class Unit:
    """Instructions run by one kernel; only the last one's results are seen from outside."""

    instructions: tuple[Instruction, ...]

    @property
    def last(self) -> Instruction:
        """Return the instruction that defines the results."""
        return self.instructions[-1]

    @property
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
    open_units: dict[Value, Unit] = {}
    units: dict[Instruction, Unit] = {}
    for instruction in region.instructions:
        unit = Unit((instruction,))
        if isinstance(instruction.op, ELEMENTWISE):
            for operand in dict.fromkeys(instruction.operands):
                producer = open_units.get(operand)
                if producer is None or not _fits(producer, unit, uses[operand], instruction):
                    continue
                del units[producer.last]
                unit = Unit((*producer.instructions, *unit.instructions))
            open_units[instruction.result] = unit
        units[instruction] = unit
    return list(units.values())


def _fits(producer: Unit, unit: Unit, uses: int, reader: Instruction) -> bool:
    together = Unit((*producer.instructions, *unit.instructions))
    return (
        uses == reader.operands.count(producer.last.result)
        and len(together.instructions) <= _MOST_INSTRUCTIONS
        and len(together.inputs) <= _MOST_INPUTS
    )
