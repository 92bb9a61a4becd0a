"""Writes matrix products in one way: transposes taken in, contracted axes in order."""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

dot_general = calls(DotGeneral)
transpose = calls(Transpose)
x = Operand("x")
y = Operand("y")
p = Attribute[tuple[int, ...]]("p")

Axes = tuple[int, ...]


@rewrite(dot_general(transpose(x, permutation=p), y))
def transpose_of_lhs(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(transpose(x, p), y, batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of x must keep their order, since the result has them in that order.
    """
    op = m[dot_general]
    if moved := _free_out_of_order(op.batch_lhs + op.contract_lhs, m[p]):
        return Declined(f"the free axes of lhs come in the order {moved}")
    batch, contract = (tuple(m[p][a] for a in side) for side in (op.batch_lhs, op.contract_lhs))
    return emit(replace(op, batch_lhs=batch, contract_lhs=contract), m[x], m[y])


@rewrite(dot_general(x, transpose(y, permutation=p)))
def transpose_of_rhs(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, transpose(y, p), batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of y must keep their order, since the result has them in that order.
    """
    op = m[dot_general]
    if moved := _free_out_of_order(op.batch_rhs + op.contract_rhs, m[p]):
        return Declined(f"the free axes of rhs come in the order {moved}")
    batch, contract = (tuple(m[p][a] for a in side) for side in (op.batch_rhs, op.contract_rhs))
    return emit(replace(op, batch_rhs=batch, contract_rhs=contract), m[x], m[y])


def _free_out_of_order(taken: Axes, permutation: Axes) -> list[int]:
    """Return the free axes of the transposed operand, as axes of x; none if x has that order."""
    free = [permutation[axis] for axis in range(len(permutation)) if axis not in taken]
    return [] if free == sorted(free) else free


@rewrite(dot_general(x, y))
def contraction_in_order(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, y, contract = c) -> dot_general(x, y, contract = sorted(c))

    Pairs of contracted axes are put into the order of the left side. Sums of floats are left as
    they are where that changes in which order they are added.
    """
    op, lhs = m[dot_general], m[x].type
    pairs = sorted(zip(op.contract_lhs, op.contract_rhs, strict=True))
    in_order = tuple(axis for axis, _ in pairs)
    if op.contract_lhs == in_order:
        return Declined("its contracted axes are in order")
    several = sum(lhs.shape[axis] != 1 for axis in in_order) > 1
    if several and not lhs.dtype.is_integer:
        return Declined(f"numbers of {lhs.dtype} would be added in another order")
    rhs = tuple(axis for _, axis in pairs)
    return emit(replace(op, contract_lhs=in_order, contract_rhs=rhs), m[x], m[y])


DOT_GENERAL_FOLDING = RewritePass(
    "dot-general-folding", (transpose_of_lhs, transpose_of_rhs, contraction_in_order)
)
