"""Reduces chains of broadcasts to at most one."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

broadcast_to = calls(BroadcastTo)
x = Operand("x")


class BroadcastToSameShape(Rewrite):
    """broadcast_to(x, shape(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A broadcast."""
        return broadcast_to(x)

    def check(self, match: Match) -> str | None:
        """Refuse if the shape changes."""
        if match.type != match[x].type:
            return f"the shape changes to {list(match.type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class BroadcastOfBroadcast(Rewrite):
    """broadcast_to(broadcast_to(x, s), t) -> broadcast_to(x, t)"""

    def pattern(self) -> OpPattern:
        """A broadcast of a broadcast."""
        return broadcast_to(broadcast_to(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The outer one: a dim of x that fits `s`, which fits `t`, fits `t`."""
        return emit(BroadcastTo(match.type.shape), match[x])


BROADCAST_FOLDING = RewritePass(
    "broadcast-folding", (BroadcastToSameShape(), BroadcastOfBroadcast())
)
