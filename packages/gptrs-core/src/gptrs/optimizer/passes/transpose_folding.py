"""Reduces chains of transposes to at most one, and to none where the elements do not move."""

from __future__ import annotations

from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.exact_ops import EXACT_UNARY
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

transpose, unary = calls(Transpose), calls(*EXACT_UNARY)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")
q = Attribute[tuple[int, ...]]("q")


@rewrite(transpose(x, permutation=p))
def transpose_in_place(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(x, (0, 1, ..)) -> x"""
    if m[p] != tuple(range(len(m[p]))):
        return Declined(f"axes move by {list(m[p])}")
    return m[x]


@rewrite(transpose(transpose(x, permutation=p), permutation=q))
def transpose_of_transpose(m: Match, emit: Emitter) -> Value:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    return emit(Transpose(tuple(m[p][axis] for axis in m[q])), m[x])


@rewrite(transpose(unary(transpose(x, permutation=p)), permutation=q))
def transpose_back_of_unary(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(f(transpose(x, p)), q) -> f(x) where p[q] = (0, 1, ..) and f is exact"""
    if [m[p][axis] for axis in m[q]] != list(range(len(m[p]))):
        return Declined(f"{list(m[q])} does not undo {list(m[p])}")
    if m[x].type.dtype.is_complex:
        return Declined("operations on complex numbers may be rounded in other ways elsewhere")
    return emit(m[unary], m[x])


TRANSPOSE_FOLDING = RewritePass(
    "transpose-folding", (transpose_in_place, transpose_of_transpose, transpose_back_of_unary)
)
