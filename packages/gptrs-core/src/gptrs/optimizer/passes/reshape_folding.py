"""Reduces chains of reshapes to at most one, with its shape written out."""

from __future__ import annotations

from gptrs.ir.ops.layout import Reshape
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

reshape = calls(Reshape)
x = Operand("x")
s = Attribute[Shape]("s")


class ReshapeToSameShape(Rewrite):
    """reshape(x, shape(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A reshape."""
        return reshape(x)

    def check(self, match: Match) -> str | None:
        """Refuse if the shape changes."""
        if match.type != match[x].type:
            return f"the shape changes to {list(match.type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class ReshapeOfReshape(Rewrite):
    """reshape(reshape(x, r), s) -> reshape(x, s)"""

    def pattern(self) -> OpPattern:
        """A reshape of a reshape."""
        return reshape(reshape(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The outer one, a -1 resolved."""
        return emit(Reshape(match.type.shape), match[x])


class ReshapeToInferredShape(Rewrite):
    """reshape(x, s) -> reshape(x, s with -1 resolved)"""

    def pattern(self) -> OpPattern:
        """A reshape."""
        return reshape(x, shape=s)

    def check(self, match: Match) -> str | None:
        """Refuse if there is no -1."""
        return None if -1 in match[s] else "the shape is written out"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The shape of the result, so that equal reshapes look equal."""
        return emit(Reshape(match.type.shape), match[x])


RESHAPE_FOLDING = RewritePass(
    "reshape-folding", (ReshapeToSameShape(), ReshapeOfReshape(), ReshapeToInferredShape())
)
