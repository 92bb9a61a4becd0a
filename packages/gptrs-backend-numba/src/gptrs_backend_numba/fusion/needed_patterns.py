"""Fusion patterns of this backend, derived and looked for only in programs with the right ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from gptrs.capture.tensor import Tensor
from gptrs.functionals.matching import FunctionalPattern
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import Claim, CustomCall, unclaimed
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.fusion import FoundCall, FusionPass, ProgramPattern, Replacement
from gptrs.optimizer.rewrite.template import Definer
from gptrs_backend_numba.evaluation import evaluate

Users = Mapping[Value, frozenset[tuple[Value, ...]]]
"""The instructions that read each value, by their results; () stands for the end of a region."""
Need = type[Op] | float | str
"""An op, a number that is a constant of a program, or what a `custom_call` computes: `softmax`."""


class Unshared(Struct, frozen=True):
    """The calls of a pattern whose products nothing else reads, in any stage.

    A shared product would have to be computed twice.
    """

    pattern: ProgramPattern
    users: Users

    @property
    def name(self) -> str:
        """Return the name of the pattern."""
        return self.pattern.name

    def find_call(self, result: Value, definition: Definer) -> FoundCall | None:
        """Return the call that defines `result`; None without one, or if a product is shared."""
        call = self.pattern.find_call(result, definition)
        return None if call is None or self._is_shared(call) else call

    def _is_shared(self, call: FoundCall) -> bool:
        own = {tuple(made.results) for made in call.made}
        stages: set[Value] = set()
        for made in call.made:
            if type(made.op) is DotGeneral or not stages.isdisjoint(made.operands):
                stages.update(made.results)
        inner = stages - {call.result}
        return any(not self.users.get(value, frozenset()) <= own for value in inner)


class GatedFusion(Struct, frozen=True):
    """A fusion that skips programs without one of the ops and constant numbers in `needs`.

    Deriving a pattern takes longer than looking for an op. So a pass has few examples, and ops that
    earlier passes have fused no longer cause a derivation.
    """

    name: str
    pattern: ProgramPattern
    replacement: Replacement
    needs: frozenset[Need]

    def apply(self, program: Program) -> Program:
        """Return the program with all calls replaced."""
        bodies = [function.body for function in program.functions]
        made = [made for body in bodies for made in body.walk()]
        if not self.needs <= {
            *map(type, (each.op for each in made)),
            *_numbers(made),
            *_kinds(made),
        }:
            return program
        found = Unshared(self.pattern, _users(bodies))
        return FusionPass(self.name, found, self.replacement).apply(program)


def fusion(
    function: Callable[..., Tensor],
    examples: Iterable[Mapping[str, object]],
    needs: Iterable[Need],
    replacement: Replacement,
    claim: Claim = unclaimed,
) -> GatedFusion:
    """Return the pass that replaces calls like `examples` by the result of `replacement`.

    All these calls must have the ops and numbers in `needs`. Composites in them that `claim` takes
    look as in programs. An argument of an example is a number,
    a word, or the type of a tensor as `tensors` gives it: see
    `gptrs.functionals.matching.pattern_example`.
    """
    name = function.__name__
    found = FunctionalPattern(name, function, list(examples), evaluate, claim)
    return GatedFusion(f"numba-fuse-{name.replace('_', '-')}", found, replacement, frozenset(needs))


def tensors(**types: str) -> dict[str, object]:
    """Return the arguments of an example that are tensors, from their types in text."""
    return {name: parse_type(text) for name, text in types.items()}


def _numbers(made: Iterable[Instruction]) -> Iterator[object]:
    """Yield the numbers of constants that are one."""
    for each in made:
        if isinstance(each.op, Constant) and each.op.value.array.size == 1:
            yield each.op.value.array.item()


def _kinds(made: Iterable[Instruction]) -> Iterator[str]:
    """Yield what custom calls of this backend compute, the third word of their targets."""
    for each in made:
        if isinstance(each.op, CustomCall) and each.op.target.startswith("gptrs.numba."):
            yield each.op.target.split(".")[2]


def _users(bodies: Iterable[Region]) -> Users:
    found: dict[Value, set[tuple[Value, ...]]] = {}
    pending = list(bodies)
    while pending:
        region = pending.pop()
        for value in region.results:
            found.setdefault(value, set()).add(())
        for made in region.instructions:
            pending.extend(made.regions)
            for operand in made.operands:
                found.setdefault(operand, set()).add(tuple(made.results))
    return {value: frozenset(users) for value, users in found.items()}


# Whether programs are fused: the fusions themselves are imported for programs not seen before.
