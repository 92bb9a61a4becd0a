"""Drops operations on integers and `i1` whose result is an operand, or known."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal
from gptrs.ir.ops.elementwise import (
    And,
    Mul,
    Not,
    Or,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Sub,
    Xor,
)
from gptrs.ir.program import Value
from gptrs.optimizer.constants import beside_splat, emit_splat, is_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

bits, absorbing = calls(And, Or, Xor), calls(And, Or, Mul)
idempotent, difference = calls(And, Or), calls(Xor, Sub)
not_, shift = calls(Not), calls(ShiftLeft, ShiftRightArithmetic, ShiftRightLogical)
x = Operand("x")
y = Operand("y")


def all_ones(dtype: DType) -> int:
    """Return the number of an integer type, or of `i1`, in which every bit is set."""
    return -1 if dtype.kind == "signed" else 2**dtype.bits - 1


@rewrite(idempotent(x, x))
def bits_of_same(m: Match, emit: Emitter) -> Value:
    """and(x, x) -> x, and or(x, x) -> x"""
    return m[x]


@rewrite(difference(x, x))
def nothing_of_same(m: Match, emit: Emitter) -> Value | Declined:
    """xor(x, x) -> 0, and of integers sub(x, x) -> 0"""
    dtype = m.type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN or infinite, which leaves NaN")
    return emit_splat(emit, Literal.full(0, dtype), m.type)


@rewrite(bits(x, y))
def bits_of_neutral(m: Match, emit: Emitter) -> Value | Declined:
    """and(x, 11..1) -> x, or(x, 0) -> x, and xor(x, 0) -> x, on either side"""
    neutral = all_ones(m.type.dtype) if isinstance(m[bits], And) else 0
    return beside_splat(m, neutral) or Declined(f"neither operand is known to be {neutral}")


@rewrite(absorbing(x, y))
def absorption(m: Match, emit: Emitter) -> Value | Declined:
    """and(x, 0) -> 0, or(x, 11..1) -> 11..1, and of integers mul(x, 0) -> 0, on either side"""
    dtype = m.type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN or infinite, which 0 does not absorb")
    winner = all_ones(dtype) if isinstance(m[absorbing], Or) else 0
    found = next((m[side] for side in (x, y) if is_splat(m, m[side], winner)), None)
    return found or Declined(f"neither operand is known to be {winner}")


@rewrite(not_(not_(x)))
def not_of_not(m: Match, emit: Emitter) -> Value:
    """not(not(x)) -> x"""
    return m[x]


@rewrite(shift(x, y))
def shift_by_zero(m: Match, emit: Emitter) -> Value | Declined:
    """shift_left(x, 0) -> x, and likewise to the right"""
    return m[x] if is_splat(m, m[y], 0) else Declined("the amount is not known to be 0")


INTEGER_SIMPLIFICATION = RewritePass(
    "integer-simplification",
    (bits_of_same, nothing_of_same, bits_of_neutral, absorption, not_of_not, shift_by_zero),
)
