"""Reduces chains of transposes to at most one, and to none where the elements do not move."""

from __future__ import annotations

from gptrs.ir.op import Op
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.exact_ops import EXACT_UNARY
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


class TransposeBackOfUnary(Rewrite):
    """transpose(f(transpose(x, p)), q) -> f(x) where p[q] = (0, 1, ..) and f is exact"""

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """A transpose of an elementwise op of a transpose."""
        inner = transpose(x, permutation=p)
        return transpose(calls(self._op)(inner), permutation=q)

    def check(self, match: Match) -> str | None:
        """Refuse if the axes do not come back to their places, or if elements are complex."""
        inner = match[p]
        if [inner[axis] for axis in match[q]] != list(range(len(inner))):
            return f"{list(match[q])} does not undo {list(inner)}"
        if match[x].type.dtype.is_complex:
            return "operations on complex numbers may be rounded in other ways elsewhere"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The op on x itself."""
        unary = match.definition(match.root.operands[0])
        assert unary is not None
        return emit(unary.op, match[x])


TRANSPOSE_FOLDING = RewritePass(
    "transpose-folding",
    (
        TransposeInPlace(),
        TransposeOfTranspose(),
        *(TransposeBackOfUnary(op) for op in EXACT_UNARY),
    ),
)
