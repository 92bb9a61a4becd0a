"""Removes instructions that no result depends on."""

from __future__ import annotations

from gptrs.ir.program import Instruction, Region, Value
from gptrs.optimizer.pass_base import RegionPass


def without_dead_code(region: Region) -> Region:
    """Return `let y = f(x) in z -> z` where z does not read y.

    Every op is pure, so that only results count; an instruction stays whole while one of its
    results is read. With it goes an error that it would have raised. Parameters stay.
    """
    live: set[Value] = set(region.results)
    kept: list[Instruction] = []
    for instruction in reversed(region.instructions):
        if not live.isdisjoint(instruction.results):
            live.update(instruction.operands)
            kept.append(instruction)
    if len(kept) == len(region.instructions):
        return region
    return Region(region.params, tuple(reversed(kept)), region.results)


DEAD_CODE = RegionPass("dead-code", without_dead_code)
