"""Liveness: after which instruction each value of a region is no longer needed."""

from __future__ import annotations

from gptrs.ir.program import Region, Value


def dying_values(region: Region) -> list[tuple[Value, ...]]:
    """For each instruction, the values whose last use it is; results of the region never die.

    A value that nothing reads dies at the instruction that defines it. Parameters that nothing
    reads are not listed.
    """
    last_use: dict[Value, int] = {}
    for position, instruction in enumerate(region.instructions):
        for value in (*instruction.operands, *instruction.results):
            last_use[value] = position
    for value in region.results:
        last_use.pop(value, None)
    dying: list[list[Value]] = [[] for _ in region.instructions]
    for value, position in last_use.items():
        dying[position].append(value)
    return [tuple(values) for values in dying]
