"""Computes once what a region computes several times."""

from __future__ import annotations

from gptrs.ir.copying import with_operands
from gptrs.ir.op import Op
from gptrs.ir.printer import print_region
from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.pass_base import RegionPass

Key = tuple[Op, tuple[Value, ...], tuple[str, ...]]
"""The key of equal computations: the op, its operands, and its regions as text."""


def with_common_subexpressions(region: Region) -> Region:
    """`let y = f(x), z = f(x) in g(y, z) -> let y = f(x) in g(y, y)`.

    Two instructions are the same if op, attributes, operands and regions are; literals compare by
    their bits, and operands of commutative ops in any order. Every op is a function of these alone
    (random numbers come from an operand), so that the first of them serves for all.
    """
    first: dict[Key, Instruction] = {}
    known: dict[Value, Value] = {}
    kept: list[Instruction] = []
    numbers: dict[Value, int] = {}
    for instruction in region.instructions:
        instruction = with_operands(instruction, known)
        regions = tuple(print_region(region) for region in instruction.regions)
        key = (instruction.op, _in_order(instruction.op, instruction.operands, numbers), regions)
        earlier = first.get(key)
        if earlier is not None:
            known.update(zip(instruction.results, earlier.results, strict=True))
            continue
        first[key] = instruction
        kept.append(instruction)
    if len(kept) == len(region.instructions):
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


def _in_order(op: Op, operands: tuple[Value, ...], numbers: dict[Value, int]) -> tuple[Value, ...]:
    """Operands of a commutative op in the order in which the region first read them."""
    if not op.commutative:
        return operands
    return tuple(sorted(operands, key=lambda value: numbers.setdefault(value, len(numbers))))


COMMON_SUBEXPRESSIONS = RegionPass("common-subexpressions", with_common_subexpressions)
