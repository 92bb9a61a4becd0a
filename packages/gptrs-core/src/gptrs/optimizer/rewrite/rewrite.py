"""What a rewrite is: a pattern, a check that may refuse, and the replacement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gptrs.errors import ProgramError
from gptrs.ir.op import Op
from gptrs.ir.program import Value
from gptrs.optimizer.rewrite.pattern import Match, OpPattern
from gptrs.optimizer.rewrite.rewriter import Node, Rewriter


class Emitter:
    """Adds instructions in front of the one that is being replaced; remembers what it added."""

    def __init__(self, rewriter: Rewriter, before: Node) -> None:
        self._rewriter = rewriter
        self._before = before
        self.emitted: list[Node] = []

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


class Rewrite(ABC):
    """One equation. Its docstring states it: `transpose(transpose(x, p), q) -> transpose(x, p[q])`.

    Both sides must be equal bit for bit, and applying rewrites over and over must come to an end.
    """

    @property
    def name(self) -> str:
        """The name under which the journal lists it: that of its class."""
        return type(self).__name__

    @abstractmethod
    def pattern(self) -> OpPattern:
        """The left-hand side."""

    def check(self, match: Match) -> str | None:
        """Why the right-hand side would be wrong or no gain for this match, None if it is fine.

        It may look at the values and attributes of the match and at the users of its result.
        """
        _ = match
        return None

    @abstractmethod
    def rewrite(self, match: Match, emit: Emitter) -> Value | Sequence[Value]:
        """The right-hand side: one value, or one for each result of the matched instruction.

        It is made of values of the match and of what `emit(op, *operands)` returns, and has the
        type of the left-hand side.
        """
