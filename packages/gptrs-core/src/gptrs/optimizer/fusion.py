"""Finds matches of patterns in a region and replaces each by one instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Program, Region, Value
from gptrs.optimizer.evaluation import definitions
from gptrs.optimizer.pass_base import change_regions
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Refusal, Rewriter, current_journal
from gptrs.optimizer.rewrite.template import Bound, Definer, Made


class FoundCall(Struct, frozen=True):
    """A call of a function that a pattern found in a program, with arguments by parameter name."""

    pattern: str
    operands: Mapping[str, Bound]
    """Operands by parameter; omitted ones are left out."""
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

    def find_call(self, result: Value, definition: Definer) -> FoundCall | None:
        """Return the call that computes `result`, None if there is none."""
        ...


def find_calls(pattern: ProgramPattern, region: Region) -> list[FoundCall]:
    """Return every call that `pattern` finds in `region` itself, in program order.

    They may overlap.

    Calls within a larger one are omitted: a product whose bias is added is one call.
    """
    defined = definitions(region)
    found = [call for result in defined if (call := pattern.find_call(result, defined.get))]
    inner = {
        value
        for call in found
        for made in call.made
        for value in made.results
        if value is not call.result
    }
    return [call for call in found if call.result not in inner]


Replacement = Callable[[FoundCall], Op | tuple[Op, Sequence[str]] | Declined | None]
"""Returns the op that computes a call from its operands in the order of `FoundCall.operands`, or
the op and the parameters whose operands it takes, in its own order. `Declined` and None leave the
call as it is; `gptrs inspect PROGRAM --why PASS` prints the reason of the former."""


class FusionPass(Struct, frozen=True):
    """A pass that replaces each call by one instruction, usually a `custom_call`.

    Calls are replaced from the end of the program to its start, so the later of two overlapping
    calls wins. Transposes of operands are emitted in front of the new instruction. Inner values
    with other readers stay alive; the rest is left to dead code elimination.
    """

    name: str
    pattern: ProgramPattern
    replacement: Replacement

    def apply(self, program: Program) -> Program:
        """Return `program` with the calls replaced; `program` itself if there are none."""
        return change_regions(program, self._replace)

    def _replace(self, region: Region) -> Region:
        rewriter = Rewriter(region)
        for node in reversed(list(rewriter)):
            used = [result for result in node.results if rewriter.used(result)]
            if len(used) != 1:
                continue
            call = self.pattern.find_call(used[0], rewriter.definition)
            found = None if call is None else self.replacement(call)
            if call is None or found is None:
                continue
            journal = current_journal()
            if isinstance(found, Declined):
                if journal:
                    types = ", ".join(str(bound.type) for bound in call.operands.values())
                    at = f"{call.pattern} of {types}"
                    journal.refused[Refusal(self.name, at, found.reason)] += 1
                continue
            op, names = found if isinstance(found, tuple) else (found, call.operands)
            if journal:
                journal.fired[self.name] += 1
            _put(op, self._taken(call, names), call, node, rewriter)
        return rewriter.region()

    def _taken(self, call: FoundCall, names: Iterable[str]) -> list[Bound]:
        """Return the operands called so; ProgramError for names that the call lacks."""
        try:
            return [call.operands[name] for name in names]
        except KeyError as error:
            listed = ", ".join(call.operands)
            raise ProgramError(
                f"`{self.name}` takes the operand {error} of `{call.pattern}`, which has {listed}"
            ) from None


def _put(
    op: Op, taken: Sequence[Bound], call: FoundCall, root: InstructionNode, rewriter: Rewriter
) -> None:
    operands: list[Value] = []
    for bound in taken:
        value = bound.value
        if bound.permutation is not None:
            value = rewriter.insert(Transpose(bound.permutation), [value], root).results[0]
        operands.append(value)
    made = rewriter.insert(op, operands, root)
    rewriter.replace(call.result, made.results[0])
    rewriter.erase_dead(root)
