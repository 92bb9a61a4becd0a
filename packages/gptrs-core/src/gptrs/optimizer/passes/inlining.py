"""Inlines calls and composites, except composites that a backend claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gptrs.ir.copying import splice, with_operands
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import Composite, Inlined
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass

Claim = Callable[[Composite, Sequence[TensorType], Sequence[TensorType]], Op | None]
"""Returns the op that computes a composite of operands and results of these types.

The op takes the same operands: mostly a `custom_call` of a backend's kernel. None inlines it.
"""


def unclaimed(
    op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Op | None:
    """Claim nothing: every composite is inlined."""
    del op, operands, results
    return None


@dataclass(frozen=True)
class Inlining:
    """`call x {function = @f} -> f(x)`, and the same for `composite`s that `claim` leaves.

    A program of `@main` alone comes out, and with `share` of the functions besides that `@main`
    calls more than once.
    """

    claim: Claim = unclaimed
    share: bool = False
    name: str = "inlining"

    def apply(self, program: Program) -> Program:
        """Return `program` without calls; itself if there is nothing to change."""
        bodies: dict[str, Region] = {}
        shared = _called_often(program.main.body) if self.share else frozenset[str]()
        for function in program.reachable():
            kept = shared if function.name == "main" else frozenset[str]()
            bodies[function.name] = _Inliner(self.claim, bodies, kept).region(function.body)
        if len(program.functions) == 1 and bodies["main"] is program.main.body:
            return program
        functions = [Function(name, bodies[name]) for name in bodies if name in shared]
        return Program((*functions, Function("main", bodies["main"])))


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
            plain = with_operands(self._claimed(instruction), known)
            callee = self._callee(plain)
            if callee is None:
                kept.append(plain)
                continue
            results = splice(callee, plain.operands, kept)
            known.update(zip(plain.results, results, strict=True))
        if len(kept) == len(region.instructions) and all(map(_is, kept, region.instructions)):
            return region
        return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))

    def _claimed(self, instruction: Instruction) -> Instruction:
        regions = tuple(self.region(region) for region in instruction.regions)
        if any(new is not old for new, old in zip(regions, instruction.regions, strict=True)):
            instruction = replace(instruction, regions=regions)
        op = instruction.op
        if not isinstance(op, Composite):
            return instruction
        operands = [value.type for value in instruction.operands]
        claimed = self._claim(op, operands, [value.type for value in instruction.results])
        return instruction if claimed is None else replace(instruction, op=claimed)

    def _callee(self, instruction: Instruction) -> Region | None:
        op = instruction.op
        if isinstance(op, Call) and op.function in self._kept:
            return None
        return self._bodies[op.callees()[0]] if isinstance(op, Inlined) else None


def _is(a: Instruction, b: Instruction) -> bool:
    return a is b
