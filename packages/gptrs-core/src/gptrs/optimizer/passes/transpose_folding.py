"""Reduces chains of transposes to at most one, and to none where the elements do not move."""

from __future__ import annotations

from gptrs.ir.ops.layout import Reshape, Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

transpose = calls(Transpose)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")
q = Attribute[tuple[int, ...]]("q")


class TransposeInPlace(Rewrite):
    """transpose(x, (0, 1, ..)) -> x"""

    def pattern(self) -> OpPattern:
        """A transpose."""
        return transpose(x, permutation=p)

    def check(self, match: Match) -> str | None:
        """Refuse if an axis moves."""
        if match[p] != tuple(range(len(match[p]))):
            return f"axes move by {list(match[p])}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class TransposeOfTranspose(Rewrite):
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""

    def pattern(self) -> OpPattern:
        """A transpose of a transpose."""
        return transpose(transpose(x, permutation=p), permutation=q)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Axis `i` of the result is axis `q[i]` of the inner one, which is axis `p[q[i]]` of x."""
        inner = match[p]
        return emit(Transpose(tuple(inner[axis] for axis in match[q])), match[x])


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
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A reshape to the type of the result."""
        return emit(Reshape(match.type.shape), match[x])


TRANSPOSE_FOLDING = RewritePass(
    "transpose-folding", (TransposeInPlace(), TransposeOfTranspose(), TransposeOfUnitDims())
)
