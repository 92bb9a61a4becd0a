"""Computes once what a region computes several times."""

from __future__ import annotations

from gptrs.ir.op import Op
from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.pass_base import RegionPass

Key = tuple[type[Op], Op, tuple[Value, ...]]
"""What an instruction computes. Ops without attributes hash alike, their class tells them apart."""


def with_common_subexpressions(region: Region) -> Region:
    """`let y = f(x), z = f(x) in g(y, z) -> let y = f(x) in g(y, y)`.

    Two instructions are the same if op, attributes and operands are; literals compare by their
    bits. Every op is a function of these alone (random numbers come from an operand), so that the
    first of them serves for all.
    """
    first: dict[Key, Instruction] = {}
    known: dict[Value, Value] = {}
    kept: list[Instruction] = []
    for instruction in region.instructions:
        operands = tuple(known.get(operand, operand) for operand in instruction.operands)
        key = (type(instruction.op), instruction.op, operands)
        earlier = first.get(key)
        if earlier is not None:
            known.update(zip(instruction.results, earlier.results, strict=True))
            continue
        if operands != instruction.operands:
            instruction = Instruction(instruction.op, operands, instruction.results)
        first[key] = instruction
        kept.append(instruction)
    if len(kept) == len(region.instructions):
        return region
    return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))


COMMON_SUBEXPRESSIONS = RegionPass("common-subexpressions", with_common_subexpressions)
