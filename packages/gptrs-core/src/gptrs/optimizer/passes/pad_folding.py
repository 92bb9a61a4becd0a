"""Reduces chains of pads to at most one, and to a slice or nothing where no value is put in."""

from __future__ import annotations

from gptrs.ir.literal import Literal
from gptrs.ir.ops.layout import Pad, Slice
from gptrs.ir.program import Value
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

pad, inner_pad = calls(Pad), calls(Pad)
x = Operand("x")

SYMBOLIC = Declined("its dims are symbolic")


def _spreads(op: Pad, shape: tuple[int, ...]) -> bool:
    """Return whether `op` may put values between the elements."""
    between = zip(op.between(len(shape)), shape, strict=True)
    return any(interior != 0 and dim not in (0, 1) for interior, dim in between)


def _is_symbolic(op: Pad) -> bool:
    return bool(symbols_of((*op.low, *op.high, *(op.interior or ()))))


@rewrite(pad(x))
def pad_of_nothing(m: Match, emit: Emitter) -> Value | Declined:
    """pad(x, low = (0, ..), high = (0, ..)) -> x"""
    op, shape = m[pad], m[x].type.shape
    if any(side != 0 for side in (*op.low, *op.high)) or _spreads(op, shape):
        return Declined(f"{list(shape)} is padded to {list(m.type.shape)}")
    return m[x]


@rewrite(pad(inner_pad(x)))
def pad_of_pad(m: Match, emit: Emitter) -> Value | Declined:
    """pad(pad(x, l, h, v), m, k, v) -> pad(x, l + m, h + k, v)

    The inner pad must not trim, since the outer one would not bring back what that takes away.
    """
    inner, outer = m[inner_pad], m[pad]
    zero = Literal.full(0, m.type.dtype)
    if (inner.value or zero) != (outer.value or zero):
        return Declined("the pads put in different values")
    if _is_symbolic(inner) or _is_symbolic(outer):
        return SYMBOLIC
    if any((*(inner.interior or ()), *(outer.interior or ()))):
        return Declined("values are put between the elements")
    if any(side < 0 for side in (*inner.low, *inner.high)):
        return Declined("the inner pad trims")
    low = tuple(a + b for a, b in zip(inner.low, outer.low, strict=True))
    high = tuple(a + b for a, b in zip(inner.high, outer.high, strict=True))
    return emit(Pad(low, high, None, outer.value), m[x])


@rewrite(pad(x))
def pad_that_trims(m: Match, emit: Emitter) -> Value | Declined:
    """pad(x, low, high) -> slice(x, -low, shape(x) + low + high) where no side is above 0"""
    op, type_ = m[pad], m[x].type
    if not type_.is_static or _is_symbolic(op):
        return SYMBOLIC
    if any(side > 0 for side in (*op.low, *op.high)) or _spreads(op, type_.shape):
        return Declined(f"values are put into {list(type_.shape)}")
    return emit(Slice(tuple(-side for side in op.low), m.type.shape), m[x])


PAD_FOLDING = RewritePass("pad-folding", (pad_of_nothing, pad_of_pad, pad_that_trims))
