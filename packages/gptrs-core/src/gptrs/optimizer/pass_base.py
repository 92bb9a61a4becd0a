"""Base classes of passes: over programs, over regions, or as a list of rewrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.program import Function, Instruction, Program, Region
from gptrs.optimizer.rewrite.driver import rewrite_region
from gptrs.optimizer.rewrite.pattern import Rewrite


class Pass(Protocol):
    """A transformation that preserves results, bit for bit, and signatures."""

    @property
    def name(self) -> str:
        """The name for tests and reports, `words-with-hyphens`."""
        ...

    def apply(self, program: Program) -> Program:
        """Return the changed program.

        `program` itself, the same object, if there is nothing to change.
        """
        ...


class RegionPass(Struct, frozen=True):
    """A pass that changes each region separately; `change` returns its argument if nothing
    changes."""

    name: str
    change: Callable[[Region], Region]

    def apply(self, program: Program) -> Program:
        """Return `program` with `change` applied to every region, inner ones first."""
        return change_regions(program, self.change)


class RewritePass(Struct, frozen=True):
    """A pass that applies rewrites until none matches; at an instruction, the first match wins."""

    name: str
    rewrites: tuple[Rewrite, ...]

    def apply(self, program: Program) -> Program:
        """Return `program` with the rewrites applied to every region, inner ones first."""
        return change_regions(program, lambda region: rewrite_region(region, self.rewrites))


def change_regions(program: Program, change: Callable[[Region], Region]) -> Program:
    """Return `program` with `change` applied to every region, inner first.

    Returns the same object if nothing changed.
    """
    bodies = [_changed(function.body, change) for function in program.functions]
    if all(body is old.body for body, old in zip(bodies, program.functions, strict=True)):
        return program
    return Program(
        tuple(
            Function(function.name, body)
            for function, body in zip(program.functions, bodies, strict=True)
        )
    )


def _changed(region: Region, change: Callable[[Region], Region]) -> Region:
    instructions = [_with_changed_regions(inner, change) for inner in region.instructions]
    if any(new is not old for new, old in zip(instructions, region.instructions, strict=True)):
        region = Region(region.params, tuple(instructions), region.results)
    return change(region)


def _with_changed_regions(
    instruction: Instruction, change: Callable[[Region], Region]
) -> Instruction:
    # The common case, worth a fast path: each of some 40 passes looks at every instruction.
    if not instruction.regions:
        return instruction
    regions = tuple(_changed(region, change) for region in instruction.regions)
    if all(new is old for new, old in zip(regions, instruction.regions, strict=True)):
        return instruction
    return replace(instruction, regions=regions)
