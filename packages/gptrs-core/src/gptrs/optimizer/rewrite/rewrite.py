"""Rewrites: a pattern, and a function that returns the replacement or declines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.program import Value
from gptrs.optimizer.rewrite.pattern import Match, OpPattern
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs.quick_dataclass import dataclass


class Emitter:
    """Adds instructions in front of the one that is being replaced; remembers what it added."""

    def __init__(self, rewriter: Rewriter, before: InstructionNode) -> None:
        self._rewriter = rewriter
        self._before = before
        self.emitted: list[InstructionNode] = []

    def __call__(self, op: Op, *operands: Value) -> Value:
        """Add an instruction that has one result and return that result."""
        (result,) = self.many(op, *operands)
        return result

    def many(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """Add an instruction and return its results; ProgramError if the operands do not fit."""
        if any(operand in self._before.results for operand in operands):
            replaced = self._before.op.name
            raise ProgramError(f"`{op.name}` cannot read the `{replaced}` that it helps to replace")
        node = self._rewriter.insert(op, operands, self._before)
        self.emitted.append(node)
        return node.results


@dataclass(frozen=True, slots=True)
class Declined:
    """Returned by a rewrite whose right-hand side would be wrong or no gain for the match."""

    reason: str
    """One sentence for users; `gptrs inspect --why` prints it."""


Replacement = Callable[[Match, Emitter], Value | Sequence[Value] | Declined]
"""Returns the right-hand side: one value, or one for each result of the matched instruction.

It is made of values of the match and of what `emit(op, *operands)` returns, and has the type of the
left-hand side. It declines before it emits anything.
"""


@dataclass(frozen=True, eq=False)
class Rewrite:
    """One equation over ops; `@rewrite(pattern)` makes it of a function.

    Both sides are equal bit for bit, and applying rewrites over and over comes to an end.
    """

    name: str
    """The name in the journal: that of the function, `neg_of_neg`, in the form `NegOfNeg`."""
    equation: str
    """The first line of the docstring, such as `neg(neg(x)) -> x`."""
    pattern: OpPattern
    """The left-hand side."""
    replacement: Replacement


def rewrite(pattern: OpPattern) -> Callable[[Replacement], Rewrite]:
    """Decorator: the function replaces instructions that `pattern` matches.

    Its docstring begins with the equation; ValueError without one.

    >>> @rewrite(transpose(transpose(x, permutation=p), permutation=q))
    ... def transpose_of_transpose(m: Match, emit: Emitter) -> Value:
    ...     '''transpose(transpose(x, p), q) -> transpose(x, p[q])'''
    ...     return emit(Transpose(tuple(m[p][axis] for axis in m[q])), m[x])
    """

    def make(replacement: Replacement) -> Rewrite:
        if not replacement.__doc__:
            raise ValueError(f"`{replacement.__name__}` needs a docstring that states its equation")
        name = "".join(word.capitalize() for word in replacement.__name__.split("_"))
        return Rewrite(name, replacement.__doc__.splitlines()[0], pattern, replacement)

    return make
