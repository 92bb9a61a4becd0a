"""Drops arithmetic that changes nothing, and writes the rest with simpler ops.

Signs of zeros, infinities and NaNs come out as before; of a NaN, PTIR does not fix the bits.
"""

from __future__ import annotations

from gptrs.ir.op import Op
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
from gptrs.ir.program import Value
from gptrs.optimizer.constants import beside_splat, is_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpSymbol, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, Rewrite, rewrite

add, sub, mul, div = calls(Add), calls(Sub), calls(Mul), calls(Div)
neg, abs_ = calls(Neg), calls(Abs)
x = Operand("x")
y = Operand("y")

COMPLEX = Declined("a product of complex numbers mixes their parts")


@rewrite(add(x, y))
def add_of_zero(m: Match, emit: Emitter) -> Value | Declined:
    """add(x, -0.0) -> x, of integers add(x, 0) -> x, on either side

    A float 0.0 is another matter: -0.0 + 0.0 is 0.0.
    """
    declined = Declined("neither operand is known to be -0.0, or 0 of integers")
    return beside_splat(m, -0.0) or declined


@rewrite(sub(x, y))
def sub_of_zero(m: Match, emit: Emitter) -> Value | Declined:
    """sub(x, 0) -> x

    A float -0.0 is another matter: -0.0 - -0.0 is 0.0.
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

    The least integer is its own negative.
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

    IEEE 754 defines the difference as that sum.
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
