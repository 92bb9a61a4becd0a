"""Writes matrix products in one way: transposes taken in, contracted axes in order."""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

dot_general = calls(DotGeneral)
transpose = calls(Transpose)
x = Operand("x")
y = Operand("y")
p = Attribute[tuple[int, ...]]("p")

Axes = tuple[int, ...]


def _op(match: Match) -> DotGeneral:
    op = match.root.op
    assert isinstance(op, DotGeneral)
    return op


def _free_out_of_order(taken: Axes, permutation: Axes) -> Axes | None:
    """The free axes of the transposed operand, as those of x, if they are not in the order of x."""
    free = [permutation[axis] for axis in range(len(permutation)) if axis not in taken]
    return tuple(free) if free != sorted(free) else None


class TransposeOfLhs(Rewrite):
    """dot_general(transpose(x, p), y, batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of x must keep their order, since the result has them in that order.
    """

    def pattern(self) -> OpPattern:
        """A product whose left side is transposed."""
        return dot_general(transpose(x, permutation=p), y)

    def check(self, match: Match) -> str | None:
        """Refuse if free axes change places."""
        op = _op(match)
        moved = _free_out_of_order(op.batch_lhs + op.contract_lhs, match[p])
        return None if moved is None else f"the free axes of lhs come in the order {list(moved)}"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The product of x itself."""
        op, axes = _op(match), match[p]
        batch, contract = ([axes[a] for a in side] for side in (op.batch_lhs, op.contract_lhs))
        plain = replace(op, batch_lhs=tuple(batch), contract_lhs=tuple(contract))
        return emit(plain, match[x], match[y])


class TransposeOfRhs(Rewrite):
    """dot_general(x, transpose(y, p), batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of y must keep their order, since the result has them in that order.
    """

    def pattern(self) -> OpPattern:
        """A product whose right side is transposed."""
        return dot_general(x, transpose(y, permutation=p))

    def check(self, match: Match) -> str | None:
        """Refuse if free axes change places."""
        op = _op(match)
        moved = _free_out_of_order(op.batch_rhs + op.contract_rhs, match[p])
        return None if moved is None else f"the free axes of rhs come in the order {list(moved)}"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The product of y itself."""
        op, axes = _op(match), match[p]
        batch, contract = ([axes[a] for a in side] for side in (op.batch_rhs, op.contract_rhs))
        plain = replace(op, batch_rhs=tuple(batch), contract_rhs=tuple(contract))
        return emit(plain, match[x], match[y])


class ContractionInOrder(Rewrite):
    """dot_general(x, y, contract = c) -> dot_general(x, y, contract = sorted(c))

    Pairs of contracted axes are put into the order of the left side. Sums of floats are left as
    they are where that changes in which order they are added.
    """

    def pattern(self) -> OpPattern:
        """A product."""
        return dot_general(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if they are in order, or if other bits could come out."""
        axes, lhs = _op(match).contract_lhs, match[x].type
        if list(axes) == sorted(axes):
            return "its contracted axes are in order"
        several = sum(lhs.shape[axis] != 1 for axis in axes) > 1
        if several and not lhs.dtype.is_integer:
            return f"numbers of {lhs.dtype} would be added in another order"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The same product."""
        op = _op(match)
        pairs = sorted(zip(op.contract_lhs, op.contract_rhs, strict=True))
        lhs, rhs = (tuple(pair[side] for pair in pairs) for side in (0, 1))
        return emit(replace(op, contract_lhs=lhs, contract_rhs=rhs), match[x], match[y])


DOT_GENERAL_FOLDING = RewritePass(
    "dot-general-folding", (TransposeOfLhs(), TransposeOfRhs(), ContractionInOrder())
)
