"""Turns what moves or repeats nothing, since dims are 1, into reshapes.

What a program computes looks the same for every size until here: patterns are matched before.
"""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Reshape, Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.exact_ops import accepts
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.broadcast_folding import UNDECIDED, aligned
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

broadcast_to = calls(BroadcastTo)
transpose = calls(Transpose)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")


class TransposeOfUnitDims(Rewrite):
    """transpose(x, p) -> reshape(x, shape(x)[p]) where p keeps the order of all dims but 1s

    Elements stay where they are. A reshape costs nothing on a row-major buffer and folds with its
    neighbours, as in the heads of attention over a single token.
    """

    def pattern(self) -> OpPattern:
        """A transpose."""
        return transpose(x, permutation=p)

    def check(self, match: Match) -> str | None:
        """Refuse if elements move, or if the result is transposed again and folds into that."""
        shape = match[x].type.shape
        moved = [axis for axis in match[p] if shape[axis] != 1]
        if moved != sorted(moved):
            return f"axes other than those of size 1 move by {list(match[p])}"
        if any(isinstance(user.op, Transpose) for user in match.users()):
            return "its result is transposed again"
        if not accepts(Reshape(match.type.shape), match[x].type):
            return UNDECIDED
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A reshape to the type of the result."""
        return emit(Reshape(match.type.shape), match[x])


class BroadcastToUnitDims(Rewrite):
    """broadcast_to(x, (1, .., *shape(x))) -> reshape(x, (1, .., *shape(x)))

    Nothing is repeated. Reshapes fold with their neighbours.
    """

    def pattern(self) -> OpPattern:
        """A broadcast."""
        return broadcast_to(x)

    def check(self, match: Match) -> str | None:
        """Refuse if elements are repeated."""
        if match.type.shape != aligned(match[x].type.shape, match.type.rank):
            return f"elements of {list(match[x].type.shape)} are repeated"
        return None if accepts(Reshape(match.type.shape), match[x].type) else UNDECIDED

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A reshape."""
        return emit(Reshape(match.type.shape), match[x])


UNIT_DIMS = RewritePass("unit-dims", (TransposeOfUnitDims(), BroadcastToUnitDims()))
