"""Drops operations on integers and `i1` whose result is an operand, or known."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal
from gptrs.ir.op import Op
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
from gptrs.optimizer.constants import emit_splat, is_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

and_, or_, xor, not_ = calls(And), calls(Or), calls(Xor), calls(Not)
x = Operand("x")
y = Operand("y")


def all_ones(dtype: DType) -> int:
    """The number of an integer type, or of `i1`, in which every bit is set."""
    return -1 if dtype.kind == "signed" else 2**dtype.bits - 1


class BitsOfSame(Rewrite):
    """and(x, x) -> x, and or(x, x) -> x"""

    def __init__(self, op: type[Op]) -> None:
        self._call = calls(op)

    def pattern(self) -> OpPattern:
        """A conjunction or disjunction of a value and itself."""
        return self._call(x, x)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """That value."""
        return match[x]


class NothingOfSame(Rewrite):
    """xor(x, x) -> 0, and of integers sub(x, x) -> 0"""

    def __init__(self, op: type[Op]) -> None:
        self._call = calls(op)

    def pattern(self) -> OpPattern:
        """The difference of a value from itself."""
        return self._call(x, x)

    def check(self, match: Match) -> str | None:
        """Refuse floats and complex numbers: NaN and infinities leave NaN."""
        dtype = match.type.dtype
        if not (dtype.is_integer or dtype.is_bool):
            return f"{dtype} may be NaN or infinite, which leaves NaN"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """0 everywhere."""
        return emit_splat(emit, Literal.full(0, match.type.dtype), match.type)


class BitsOfNeutral(Rewrite):
    """and(x, 11..1) -> x, or(x, 0) -> x, and xor(x, 0) -> x, on either side"""

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """An operation on bits."""
        return calls(self._op)(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if neither operand is known to leave the other as it is."""
        neutral = self._neutral(match)
        if not any(is_splat(match, match[side], neutral) for side in (x, y)):
            return f"neither operand is known to be {neutral}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The other operand."""
        return match[x] if is_splat(match, match[y], self._neutral(match)) else match[y]

    def _neutral(self, match: Match) -> int:
        return all_ones(match.type.dtype) if self._op is And else 0


class Absorption(Rewrite):
    """and(x, 0) -> 0, or(x, 11..1) -> 11..1, and of integers mul(x, 0) -> 0, on either side"""

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """An operation on bits, or a product."""
        return calls(self._op)(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if neither operand is known to decide, and products that are not of integers."""
        dtype = match.type.dtype
        if not (dtype.is_integer or dtype.is_bool):
            return f"{dtype} may be NaN or infinite, which 0 does not absorb"
        if not any(is_splat(match, match[side], self._winner(match)) for side in (x, y)):
            return f"neither operand is known to be {self._winner(match)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The operand that decides."""
        return match[x] if is_splat(match, match[x], self._winner(match)) else match[y]

    def _winner(self, match: Match) -> int:
        return all_ones(match.type.dtype) if self._op is Or else 0


class NotOfNot(Rewrite):
    """not(not(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A negated negation."""
        return not_(not_(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The operand."""
        return match[x]


class ShiftByZero(Rewrite):
    """shift_left(x, 0) -> x, and likewise to the right"""

    def __init__(self, op: type[Op]) -> None:
        self._call = calls(op)

    def pattern(self) -> OpPattern:
        """A shift."""
        return self._call(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if the amount is not known to be 0."""
        return None if is_splat(match, match[y], 0) else "the amount is not known to be 0"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The operand."""
        return match[x]


INTEGER_SIMPLIFICATION = RewritePass(
    "integer-simplification",
    (
        *(BitsOfSame(op) for op in (And, Or)),
        *(NothingOfSame(op) for op in (Xor, Sub)),
        *(BitsOfNeutral(op) for op in (And, Or, Xor)),
        *(Absorption(op) for op in (And, Or, Mul)),
        NotOfNot(),
        *(ShiftByZero(op) for op in (ShiftLeft, ShiftRightArithmetic, ShiftRightLogical)),
    ),
)
