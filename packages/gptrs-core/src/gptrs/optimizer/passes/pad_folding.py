"""Reduces chains of pads to at most one, and to a slice or nothing where no value is put in."""

from __future__ import annotations

from gptrs.ir.literal import Literal
from gptrs.ir.ops.layout import Pad, Slice
from gptrs.ir.program import Value
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

pad = calls(Pad)
x = Operand("x")

SYMBOLIC = "its dims are symbolic"


def _outer(match: Match) -> Pad:
    op = match.root.op
    assert isinstance(op, Pad)
    return op


def _inner(match: Match) -> Pad:
    node = match.definition(match.root.operands[0])
    assert node is not None
    assert isinstance(node.op, Pad)
    return node.op


def _spreads(op: Pad, shape: tuple[int, ...]) -> bool:
    """Whether `op` may put values between the elements."""
    between = zip(op.between(len(shape)), shape, strict=True)
    return any(interior != 0 and dim not in (0, 1) for interior, dim in between)


def _is_symbolic(op: Pad) -> bool:
    return bool(symbols_of((*op.low, *op.high, *(op.interior or ()))))


class PadOfNothing(Rewrite):
    """pad(x, low = (0, ..), high = (0, ..)) -> x"""

    def pattern(self) -> OpPattern:
        """A pad."""
        return pad(x)

    def check(self, match: Match) -> str | None:
        """Refuse if something is put in or trimmed."""
        op = _outer(match)
        if any(side != 0 for side in (*op.low, *op.high)) or _spreads(op, match[x].type.shape):
            return f"{list(match[x].type.shape)} is padded to {list(match.type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class PadOfPad(Rewrite):
    """pad(pad(x, l, h, v), m, k, v) -> pad(x, l + m, h + k, v)

    The inner pad must not trim, since the outer one would not bring back what that takes away.
    """

    def pattern(self) -> OpPattern:
        """A pad of a pad."""
        return pad(pad(x))

    def check(self, match: Match) -> str | None:
        """Refuse if the values differ, if some go between elements, or if the inner pad trims."""
        inner, outer = _inner(match), _outer(match)
        zero = Literal.full(0, match.type.dtype)
        if (inner.value or zero) != (outer.value or zero):
            return "the pads put in different values"
        if _is_symbolic(inner) or _is_symbolic(outer):
            return SYMBOLIC
        if any((*(inner.interior or ()), *(outer.interior or ()))):
            return "values are put between the elements"
        if any(side < 0 for side in (*inner.low, *inner.high)):
            return "the inner pad trims"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One pad."""
        inner, outer = _inner(match), _outer(match)
        low, high = (
            tuple(a + b for a, b in zip(first, second, strict=True))
            for first, second in ((inner.low, outer.low), (inner.high, outer.high))
        )
        return emit(Pad(low, high, None, outer.value), match[x])


class PadThatTrims(Rewrite):
    """pad(x, low, high) -> slice(x, -low, shape(x) + low + high) where no side is above 0"""

    def pattern(self) -> OpPattern:
        """A pad."""
        return pad(x)

    def check(self, match: Match) -> str | None:
        """Refuse if a value is put in."""
        op = _outer(match)
        if not match[x].type.is_static or _is_symbolic(op):
            return SYMBOLIC
        if any(side > 0 for side in (*op.low, *op.high)) or _spreads(op, match[x].type.shape):
            return f"values are put into {list(match[x].type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A slice."""
        starts = tuple(-side for side in _outer(match).low)
        return emit(Slice(starts, match.type.shape), match[x])


PAD_FOLDING = RewritePass("pad-folding", (PadOfNothing(), PadOfPad(), PadThatTrims()))
