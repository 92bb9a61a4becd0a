"""Copies of regions and instructions: the same ones on other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gptrs.ir.program import Instruction, Region, Value


def with_operands(instruction: Instruction, known: Mapping[Value, Value]) -> Instruction:
    """Return `instruction` that reads `known[x]` where it read x.

    Itself if it reads nothing known.
    """
    operands = tuple(known.get(operand, operand) for operand in instruction.operands)
    return (
        instruction if operands == instruction.operands else replace(instruction, operands=operands)
    )


def splice(region: Region, arguments: Sequence[Value], into: list[Instruction]) -> list[Value]:
    """Append a copy of `region` on `arguments` to `into`; return the values that it returns."""
    copies = dict(zip(region.params, arguments, strict=True))
    for instruction in region.instructions:
        results = tuple(Value(value.type, value.name) for value in instruction.results)
        operands = tuple(copies[operand] for operand in instruction.operands)
        regions = tuple(copy_region(inner) for inner in instruction.regions)
        copies.update(zip(instruction.results, results, strict=True))
        into.append(Instruction(instruction.op, operands, results, regions))
    return [copies[value] for value in region.results]


def copy_region(region: Region) -> Region:
    """Return the same region with values of its own."""
    params = tuple(Value(param.type, param.name) for param in region.params)
    instructions: list[Instruction] = []
    results = splice(region, params, instructions)
    return Region(params, tuple(instructions), tuple(results))
