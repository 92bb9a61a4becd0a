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
from gptrs.optimizer.constants import is_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

add, sub, mul, div = calls(Add), calls(Sub), calls(Mul), calls(Div)
neg, abs_ = calls(Neg), calls(Abs)
x = Operand("x")
y = Operand("y")

COMPLEX = "a product of complex numbers mixes their parts"


class AddOfZero(Rewrite):
    """add(x, -0.0) -> x, of integers add(x, 0) -> x, on either side

    A float 0.0 is another matter: -0.0 + 0.0 is 0.0.
    """

    def pattern(self) -> OpPattern:
        """A sum."""
        return add(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if neither operand is known to be that zero."""
        if not any(is_splat(match, match[side], -0.0) for side in (x, y)):
            return "neither operand is known to be -0.0, or 0 of integers"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The other operand."""
        return match[x] if is_splat(match, match[y], -0.0) else match[y]


class SubOfZero(Rewrite):
    """sub(x, 0) -> x"""

    def pattern(self) -> OpPattern:
        """A difference."""
        return sub(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if the second operand is not known to be 0; -0.0 - -0.0 is 0.0."""
        return None if is_splat(match, match[y], 0) else "the second operand is not known to be 0"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The first operand."""
        return match[x]


class MulByOne(Rewrite):
    """mul(x, 1) -> x, on either side"""

    def pattern(self) -> OpPattern:
        """A product."""
        return mul(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if neither operand is known to be 1, or if they are complex."""
        if match.type.dtype.is_complex:
            return COMPLEX
        if not any(is_splat(match, match[side], 1) for side in (x, y)):
            return "neither operand is known to be 1"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The other operand."""
        return match[x] if is_splat(match, match[y], 1) else match[y]


class DivByOne(Rewrite):
    """div(x, 1) -> x"""

    def pattern(self) -> OpPattern:
        """A quotient."""
        return div(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if the divisor is not known to be 1, or if it is complex."""
        if match.type.dtype.is_complex:
            return COMPLEX
        return None if is_splat(match, match[y], 1) else "the divisor is not known to be 1"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The dividend."""
        return match[x]


class NegOfNeg(Rewrite):
    """neg(neg(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A negated negation."""
        return neg(neg(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The operand; the least integer is its own negative."""
        return match[x]


class AbsOfNeg(Rewrite):
    """abs(neg(x)) -> abs(x)"""

    def pattern(self) -> OpPattern:
        """The magnitude of a negative."""
        return abs_(neg(x))

    def check(self, match: Match) -> str | None:
        """Refuse unsigned integers, of which the negative is another number."""
        if match.type.dtype.kind == "unsigned":
            return f"the negative of {match.type.dtype} wraps"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The magnitude."""
        return emit(Abs(), match[x])


class AddOfNeg(Rewrite):
    """add(x, neg(y)) -> sub(x, y)"""

    def pattern(self) -> OpPattern:
        """A sum with a negative."""
        return add(x, neg(y))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The difference, which IEEE 754 defines as that sum."""
        return emit(Sub(), match[x], match[y])


class SubOfNeg(Rewrite):
    """sub(x, neg(y)) -> add(x, y)"""

    def pattern(self) -> OpPattern:
        """A difference with a negative."""
        return sub(x, neg(y))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The sum."""
        return emit(Add(), match[x], match[y])


class OnceIsEnough(Rewrite):
    """f(f(x)) -> f(x) where f is abs, sign, floor, ceil or round_nearest_even"""

    def __init__(self, op: type[Op]) -> None:
        self._call = calls(op)

    def pattern(self) -> OpPattern:
        """An op on its own result."""
        return self._call(self._call(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The inner one."""
        (inner,) = match.root.operands
        return inner


ELEMENTWISE_SIMPLIFICATION = RewritePass(
    "elementwise-simplification",
    (
        AddOfZero(),
        SubOfZero(),
        MulByOne(),
        DivByOne(),
        NegOfNeg(),
        AbsOfNeg(),
        AddOfNeg(),
        SubOfNeg(),
        *(OnceIsEnough(op) for op in (Abs, Sign, Floor, Ceil, RoundNearestEven)),
    ),
)
