"""Finds what patterns describe in a region, and puts one instruction in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gptrs.ir.op import Op
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Program, Region, Value
from gptrs.optimizer.evaluation import definitions
from gptrs.optimizer.pass_base import change_regions
from gptrs.optimizer.rewrite.rewriter import Node, Rewriter
from gptrs.optimizer.rewrite.template import Bound, Definer, Made


@dataclass(frozen=True)
class View:
    """A call that a pattern found in a program, under the names of the function that was called."""

    pattern: str
    operands: Mapping[str, Bound]
    """By parameter; those that the call did without are left out."""
    attributes: Mapping[str, object]
    """The values of all other parameters."""
    made: tuple[Made, ...]
    """The instructions that compute the result, operands before users."""
    result: Value


class ProgramPattern(Protocol):
    """Finds calls of a function in programs."""

    @property
    def name(self) -> str:
        """The name of the function."""
        ...

    def view(self, result: Value, definition: Definer) -> View | None:
        """The call that gives `result`, None if there is none."""
        ...


def find_views(pattern: ProgramPattern, region: Region) -> list[View]:
    """Every call that `pattern` finds in `region` itself, in program order; they may overlap.

    What is part of a larger call is left out: a product whose bias is added is one call.
    """
    defined = definitions(region)
    found = [view for result in defined if (view := pattern.view(result, defined.get))]
    inner = {
        value
        for view in found
        for made in view.made
        for value in made.results
        if value is not view.result
    }
    return [view for view in found if view.result not in inner]


Replacement = Callable[[View], Op | None]
"""The op that computes the result of a view from its operands, in their order; None to decline."""


@dataclass(frozen=True)
class FusionPass:
    """A pass that puts one instruction, mostly a `custom_call`, in the place of each view.

    Calls are replaced from the end of the program to its start, so that of two that overlap the
    later one wins. A transposed operand is transposed in front of the new instruction. What else
    reads an inner value keeps that alive; what nothing reads any more goes with the dead code.
    """

    name: str
    pattern: ProgramPattern
    replacement: Replacement

    def apply(self, program: Program) -> Program:
        """`program` with the calls replaced; itself if there are none."""
        return change_regions(program, self._replace)

    def _replace(self, region: Region) -> Region:
        rewriter = Rewriter(region)
        for node in reversed(list(rewriter)):
            if len(node.results) != 1 or not rewriter.used(node.results[0]):
                continue
            view = self.pattern.view(node.results[0], rewriter.definition)
            op = None if view is None else self.replacement(view)
            if view is not None and op is not None:
                _put(op, view, node, rewriter)
        return rewriter.region()


def _put(op: Op, view: View, root: Node, rewriter: Rewriter) -> None:
    operands: list[Value] = []
    for bound in view.operands.values():
        value = bound.value
        if bound.permutation is not None:
            value = rewriter.insert(Transpose(bound.permutation), [value], root).results[0]
        operands.append(value)
    made = rewriter.insert(op, operands, root)
    rewriter.replace(root.results[0], made.results[0])
    _erase_dead(root, rewriter)


def _erase_dead(node: Node, rewriter: Rewriter) -> None:
    pending = [node]
    while pending:
        dead = pending.pop()
        if dead.erased or any(rewriter.used(result) for result in dead.results):
            continue
        rewriter.erase(dead)
        defined = (rewriter.definition(operand) for operand in dead.operands)
        pending.extend(made for made in defined if made is not None)
