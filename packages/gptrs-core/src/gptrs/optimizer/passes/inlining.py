"""Inlines calls and composites, except composites that a backend claims."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gptrs.ir.copying import splice, with_operands
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Declined:
    """A backend knows a composite, but does not take this one; `gptrs inspect --why` tells it."""

    reason: str


Claimed = Op | Region | Declined | None
"""Says how a backend treats a composite.

An op computes it from the same operands, mostly a `custom_call` of a kernel, and a region with such
an op in it, which takes the operands as parameters. Anything else inlines the composite; None
without a reason, as for kinds that are not known.
"""
Claim = Callable[[Composite, Sequence[TensorType], Sequence[TensorType]], Claimed]
"""Says what is done with a composite of operands and results of these types."""


def unclaimed(op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]) -> None:
    """Claim nothing: every composite is inlined."""
    del op, operands, results


@dataclass(frozen=True)
class Inlining:
    """`call x {function = @f} -> f(x)`, and the same for `composite`s that `claim` leaves.

    A program of `@main` alone comes out, and with `share` of the functions besides that `@main`
    calls more than once. Without `calls` composites alone are inlined; functions stay, without
    decompositions that nothing else calls.
    """

    claim: Claim = unclaimed
    share: bool = False
    calls: bool = True
    name: str = "inlining"

    def apply(self, program: Program) -> Program:
        """Return `program` without calls; itself if there is nothing to change."""
        bodies: dict[str, Region] = {}
        kept = self._kept(program)
        for function in program.reachable() if self.calls else program.functions:
            within = kept if function.name == "main" or not self.calls else frozenset[str]()
            bodies[function.name] = _Inliner(self.claim, bodies, within).region(function.body)
        functions = [
            function
            if bodies[function.name] is function.body
            else Function(function.name, bodies[function.name])
            for function in program.functions
            if function.name in kept or function.name == "main"
        ]
        if len(functions) == len(program.functions) and all(
            map(operator.is_, functions, program.functions)
        ):
            return program
        return Program(tuple(functions))

    def _kept(self, program: Program) -> frozenset[str]:
        """Return the functions, besides `@main`, that stay."""
        if self.calls:
            return _called_often(program.main.body) if self.share else frozenset[str]()
        inlined: set[str] = set()
        called: set[str] = set()
        for function in program.functions:
            for made in function.body.walk():
                (inlined if isinstance(made.op, Composite) else called).update(made.op.callees())
        return frozenset(each.name for each in program.functions) - (inlined - called)


def _called_often(region: Region) -> frozenset[str]:
    """Return the functions that several instructions of `region` call."""
    calls = Counter(made.op.function for made in region.instructions if isinstance(made.op, Call))
    return frozenset(name for name, count in calls.items() if count > 1)


class _Inliner:
    """Rebuilds regions; `bodies` holds the callees, in which nothing is left to inline.

    Calls of `kept` functions stay.
    """

    def __init__(
        self, claim: Claim, bodies: Mapping[str, Region], kept: Collection[str] = ()
    ) -> None:
        self._claim = claim
        self._bodies = bodies
        self._kept = kept

    def region(self, region: Region) -> Region:
        """Return `region` with the calls in it, at any depth, inlined; itself if there are none."""
        known: dict[Value, Value] = {}
        kept: list[Instruction] = []
        for instruction in region.instructions:
            plain = with_operands(self._with_regions(instruction), known)
            found = self._replacement(plain)
            if not isinstance(found, Region):
                kept.append(plain if found is None else replace(plain, op=found))
                continue
            results = splice(found, plain.operands, kept)
            known.update(zip(plain.results, results, strict=True))
        if len(kept) == len(region.instructions) and all(
            map(operator.is_, kept, region.instructions)
        ):
            return region
        return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))

    def _with_regions(self, instruction: Instruction) -> Instruction:
        regions = tuple(self.region(region) for region in instruction.regions)
        if any(new is not old for new, old in zip(regions, instruction.regions, strict=True)):
            return replace(instruction, regions=regions)
        return instruction

    def _replacement(self, instruction: Instruction) -> Op | Region | None:
        """Return what computes the instruction in its place, None where it stays."""
        op = instruction.op
        if isinstance(op, Composite):
            return self._claimed(op, instruction) or self._bodies[op.decomposition]
        return self._callee(instruction)

    def _claimed(self, op: Composite, instruction: Instruction) -> Op | Region | None:
        operands = [value.type for value in instruction.operands]
        claimed = self._claim(op, operands, [value.type for value in instruction.results])
        return None if isinstance(claimed, Declined) else claimed

    def _callee(self, instruction: Instruction) -> Region | None:
        op = instruction.op
        if not isinstance(op, Call) or op.function in self._kept:
            return None
        return self._bodies[op.function]
