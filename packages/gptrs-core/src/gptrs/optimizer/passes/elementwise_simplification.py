"""Drops arithmetic without effect, and simplifies the rest. Signs of zeros, infinities and NaNs are
preserved; PTIR does not fix the bits of a NaN.
"""

from __future__ import annotations

from msgspec.structs import replace

from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.elementwise import (
    Abs,
    Add,
    Ceil,
    Div,
    Floor,
    Mul,
    Neg,
    RoundNearestEven,
    Sign,
    Sub,
)
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Transpose
from gptrs.ir.program import Value
from gptrs.ir.size_guards import broadcastable_to
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.constants import beside_splat, is_splat
from gptrs.optimizer.exact_values import EXACT_BINARY, EXACT_UNARY, accepts
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.broadcast_folding import UNDECIDED, aligned
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Emitter,
    Match,
    Operand,
    OpSymbol,
    Rewrite,
    calls,
    rewrite,
)

add, sub, mul, div = calls(Add), calls(Sub), calls(Mul), calls(Div)
neg, abs_ = calls(Neg), calls(Abs)
x = Operand("x")
y = Operand("y")

COMPLEX = Declined("a product of complex numbers mixes their parts")


@rewrite(add(x, y))
def add_of_zero(m: Match, emit: Emitter) -> Value | Declined:
    """add(x, -0.0) -> x, of integers add(x, 0) -> x, on either side

    Not for a float 0.0: -0.0 + 0.0 is 0.0.
    """
    declined = Declined("neither operand is known to be -0.0, or 0 of integers")
    return beside_splat(m, -0.0) or declined


@rewrite(sub(x, y))
def sub_of_zero(m: Match, emit: Emitter) -> Value | Declined:
    """sub(x, 0) -> x

    Not for a float -0.0: -0.0 - -0.0 is 0.0.
    """
    return m[x] if is_splat(m, m[y], 0) else Declined("the second operand is not known to be 0")


@rewrite(mul(x, y))
def mul_by_one(m: Match, emit: Emitter) -> Value | Declined:
    """mul(x, 1) -> x, on either side"""
    if m.type.dtype.is_complex:
        return COMPLEX
    return beside_splat(m, 1) or Declined("neither operand is known to be 1")


@rewrite(div(x, y))
def div_by_one(m: Match, emit: Emitter) -> Value | Declined:
    """div(x, 1) -> x"""
    if m.type.dtype.is_complex:
        return COMPLEX
    return m[x] if is_splat(m, m[y], 1) else Declined("the divisor is not known to be 1")


@rewrite(neg(neg(x)))
def neg_of_neg(m: Match, emit: Emitter) -> Value:
    """neg(neg(x)) -> x

    Also true of the least integer, which is its own negative.
    """
    return m[x]


@rewrite(abs_(neg(x)))
def abs_of_neg(m: Match, emit: Emitter) -> Value | Declined:
    """abs(neg(x)) -> abs(x)"""
    if m.type.dtype.kind == "unsigned":
        return Declined(f"the negative of {m.type.dtype} wraps")
    return emit(Abs(), m[x])


@rewrite(add(x, neg(y)))
def add_of_neg(m: Match, emit: Emitter) -> Value:
    """add(x, neg(y)) -> sub(x, y)

    IEEE 754 defines subtraction as this sum.
    """
    return emit(Sub(), m[x], m[y])


@rewrite(sub(x, neg(y)))
def sub_of_neg(m: Match, emit: Emitter) -> Value:
    """sub(x, neg(y)) -> add(x, y)"""
    return emit(Add(), m[x], m[y])


def _once_is_enough(f: OpSymbol[Op]) -> Rewrite:
    @rewrite(f(f(x)))
    def once_is_enough(m: Match, emit: Emitter) -> Value:
        """f(f(x)) -> f(x) where f is abs, sign, floor, ceil or round_nearest_even"""
        return m.operands[0]

    return once_is_enough


ELEMENTWISE_SIMPLIFICATION = RewritePass(
    "elementwise-simplification",
    (
        add_of_zero,
        sub_of_zero,
        mul_by_one,
        div_by_one,
        neg_of_neg,
        abs_of_neg,
        add_of_neg,
        sub_of_neg,
        *(_once_is_enough(calls(op)) for op in (Abs, Sign, Floor, Ceil, RoundNearestEven)),
    ),
)


# Canonicalizes matrix products: absorbs transposes, sorts contracted axes.


dot_general = calls(DotGeneral)
transpose = calls(Transpose)
p = Attribute[tuple[int, ...]]("p")

Axes = tuple[int, ...]


@rewrite(dot_general(transpose(x, permutation=p), y))
def transpose_of_lhs(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(transpose(x, p), y, batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of x must keep their order, which is also their order in the result.
    """
    op = m[dot_general]
    if moved := _free_out_of_order(op.batch_lhs + op.contract_lhs, m[p]):
        return Declined(f"the free axes of lhs come in the order {moved}")
    batch, contract = (tuple(m[p][a] for a in side) for side in (op.batch_lhs, op.contract_lhs))
    return emit(replace(op, batch_lhs=batch, contract_lhs=contract), m[x], m[y])


@rewrite(dot_general(x, transpose(y, permutation=p)))
def transpose_of_rhs(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, transpose(y, p), batch = b, contract = c) -> dot_general(x, y, p[b], p[c])

    The free axes of y must keep their order, which is also their order in the result.
    """
    op = m[dot_general]
    if moved := _free_out_of_order(op.batch_rhs + op.contract_rhs, m[p]):
        return Declined(f"the free axes of rhs come in the order {moved}")
    batch, contract = (tuple(m[p][a] for a in side) for side in (op.batch_rhs, op.contract_rhs))
    return emit(replace(op, batch_rhs=batch, contract_rhs=contract), m[x], m[y])


def _free_out_of_order(taken: Axes, permutation: Axes) -> list[int]:
    """Return the free axes of the transposed operand as axes of x; empty if they are in order."""
    free = [permutation[axis] for axis in range(len(permutation)) if axis not in taken]
    return [] if free == sorted(free) else free


@rewrite(dot_general(x, y))
def contraction_in_order(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, y, contract = c) -> dot_general(x, y, contract = sorted(c))

    Pairs of contracted axes are sorted by the left side. Float sums are left alone if that would
    change the order of additions.
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


# Turns transposes and broadcasts of unit dims, which move or repeat nothing, into reshapes.
#
# They run after patterns are matched: until then, a program must look the same for every size.


broadcast_to = calls(BroadcastTo)


@rewrite(transpose(x, permutation=p))
def transpose_of_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(x, p) -> reshape(x, shape(x)[p]) where p keeps the order of all dims but 1s

    No element moves. A reshape is free on a row-major buffer and folds with its neighbours, as in
    the heads of attention over a single token.
    """
    shape = m[x].type.shape
    moved = [axis for axis in m[p] if shape[axis] != 1]
    if moved != sorted(moved):
        return Declined(f"axes other than those of size 1 move by {list(m[p])}")
    if any(isinstance(user.op, Transpose) for user in m.users()):
        return Declined("its result is transposed again")  # and folds into that transpose
    return _reshaped(m, emit)


@rewrite(broadcast_to(x))
def broadcast_to_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """broadcast_to(x, (1, .., *shape(x))) -> reshape(x, (1, .., *shape(x)))

    Nothing is repeated. Reshapes fold with their neighbours.
    """
    if m.type.shape != aligned(m[x].type.shape, m.type.rank):
        return Declined(f"elements of {list(m[x].type.shape)} are repeated")
    return _reshaped(m, emit)


def _reshaped(m: Match, emit: Emitter) -> Value | Declined:
    reshape = Reshape(m.type.shape)
    return emit(reshape, m[x]) if accepts(reshape, m[x].type) else UNDECIDED


UNIT_DIMS = RewritePass("unit-dims", (transpose_of_unit_dims, broadcast_to_unit_dims))


# Computes elements once, before repeating them.


unary, binary = calls(*EXACT_UNARY), calls(*EXACT_BINARY)


def _no_gain(small: TensorType, m: Match) -> Declined | None:
    """Decline if computing elements of the type `small` instead of the result's gains nothing."""
    if small.dtype.is_complex:
        return Declined("operations on complex numbers may be rounded in other ways elsewhere")
    if not small.is_static or not m.type.is_static:
        return Declined("its dims are symbolic")
    if small.size >= m.type.size:
        fewer = f"{list(small.shape)} has no fewer elements than {list(m.type.shape)}"
        return Declined(fewer)
    return None


@rewrite(unary(broadcast_to(x)))
def unary_of_broadcast(m: Match, emit: Emitter) -> Value | Declined:
    """f(broadcast_to(x, s)) -> broadcast_to(f(x), s) where f is exact"""
    if no_gain := _no_gain(m[x].type, m):
        return no_gain
    return emit(BroadcastTo(m.type.shape), emit(m[unary], m[x]))


@rewrite(binary(broadcast_to(x), broadcast_to(y)))
def binary_of_broadcasts(m: Match, emit: Emitter) -> Value | Declined:
    """f(broadcast_to(x, s), broadcast_to(y, s)) -> broadcast_to(f(x, broadcast_to(y, ..)), s)

    x and y are broadcast to the shape of one of them, if the other broadcasts to it.
    """
    a, b = m[x].type, m[y].type
    if broadcastable_to(a.shape, b.shape):
        larger = b
    elif broadcastable_to(b.shape, a.shape):
        larger = a
    else:
        return Declined(f"neither of {list(a.shape)} and {list(b.shape)} fits into the other")
    if no_gain := _no_gain(larger, m):
        return no_gain
    small = [_broadcast(m[side], larger.shape, emit) for side in (x, y)]
    return emit(BroadcastTo(m.type.shape), emit(m[binary], *small))


def _broadcast(value: Value, shape: tuple[int, ...], emit: Emitter) -> Value:
    return value if value.type.shape == shape else emit(BroadcastTo(shape), value)


LATE_BROADCASTS = RewritePass("late-broadcasts", (unary_of_broadcast, binary_of_broadcasts))
