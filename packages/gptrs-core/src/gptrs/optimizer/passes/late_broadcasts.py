"""Computes elements before they are repeated, not each repetition anew."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.ir.shapes import broadcastable_to
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.exact_ops import EXACT_BINARY, EXACT_UNARY
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

broadcast_to = calls(BroadcastTo)
unary, binary = calls(*EXACT_UNARY), calls(*EXACT_BINARY)
x = Operand("x")
y = Operand("y")


def _no_gain(small: TensorType, m: Match) -> Declined | None:
    """Decline if it would not pay to compute elements of the type `small`, not of the result."""
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

    x and y are broadcast to the shape of one of them, where the other fits into that.
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
