"""Computes elements before they are repeated, not each repetition anew."""

from __future__ import annotations

from gptrs.ir.op import Op
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.ir.shapes import broadcastable_to
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.exact_ops import EXACT_BINARY, EXACT_UNARY
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

broadcast_to = calls(BroadcastTo)
x = Operand("x")
y = Operand("y")


def _no_gain(small: TensorType, match: Match) -> str | None:
    """Why it would not pay to compute on elements of the type `small` instead of the result."""
    if small.dtype.is_complex:
        return "operations on complex numbers may be rounded in other ways elsewhere"
    if not small.is_static or not match.type.is_static:
        return "its dims are symbolic"
    if small.size >= match.type.size:
        return f"{list(small.shape)} has no fewer elements than {list(match.type.shape)}"
    return None


class UnaryOfBroadcast(Rewrite):
    """f(broadcast_to(x, s)) -> broadcast_to(f(x), s) where f is exact"""

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """An elementwise op of a broadcast."""
        return calls(self._op)(broadcast_to(x))

    def check(self, match: Match) -> str | None:
        """Refuse if there are no fewer elements in x, or if they are complex."""
        return _no_gain(match[x].type, match)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The op on x itself, repeated."""
        return emit(BroadcastTo(match.type.shape), emit(match.root.op, match[x]))


class BinaryOfBroadcasts(Rewrite):
    """f(broadcast_to(x, s), broadcast_to(y, s)) -> broadcast_to(f(x, broadcast_to(y, ..)), s)

    x and y are broadcast to the shape of one of them, where the other fits into that.
    """

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """An elementwise op of two broadcasts."""
        return calls(self._op)(broadcast_to(x), broadcast_to(y))

    def check(self, match: Match) -> str | None:
        """Refuse if neither fits into the other, or if that has no fewer elements."""
        a, b = match[x].type, match[y].type
        if not (broadcastable_to(a.shape, b.shape) or broadcastable_to(b.shape, a.shape)):
            return f"neither of {list(a.shape)} and {list(b.shape)} fits into the other"
        return _no_gain(_larger(a, b), match)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The op on the smaller shape, repeated."""
        shape = _larger(match[x].type, match[y].type).shape
        small = [_broadcast(match[side], shape, emit) for side in (x, y)]
        return emit(BroadcastTo(match.type.shape), emit(match.root.op, *small))


def _larger(a: TensorType, b: TensorType) -> TensorType:
    """The one that the other can be broadcast to."""
    return b if broadcastable_to(a.shape, b.shape) else a


def _broadcast(value: Value, shape: tuple[int, ...], emit: Emitter) -> Value:
    return value if value.type.shape == shape else emit(BroadcastTo(shape), value)


LATE_BROADCASTS = RewritePass(
    "late-broadcasts",
    (
        *(UnaryOfBroadcast(op) for op in EXACT_UNARY),
        *(BinaryOfBroadcasts(op) for op in EXACT_BINARY),
    ),
)
