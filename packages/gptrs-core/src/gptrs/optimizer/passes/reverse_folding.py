"""Reduces chains of reversals to at most one, along axes where it makes a difference."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Reverse
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.broadcast_folding import aligned
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

reverse, broadcast_to = calls(Reverse), calls(BroadcastTo)
x = Operand("x")
a = Attribute[tuple[int, ...]]("a")
b = Attribute[tuple[int, ...]]("b")


@rewrite(reverse(x, axes=a))
def reverse_of_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """reverse(x, a) -> reverse(x, a without the axes of size 0 and 1), x if none is left"""
    axes = tuple(axis for axis in m[a] if m.type.shape[axis] not in (0, 1))
    if axes and axes == m[a]:
        return Declined(f"there are several elements along each of the axes {list(axes)}")
    return emit(Reverse(axes), m[x]) if axes else m[x]


@rewrite(reverse(reverse(x, axes=a), axes=b))
def reverse_of_reverse(m: Match, emit: Emitter) -> Value:
    """reverse(reverse(x, a), b) -> reverse(x, axes in either a or b)

    Reversals along an axis of both undo each other.
    """
    axes = tuple(sorted(set(m[a]) ^ set(m[b])))
    return emit(Reverse(axes), m[x]) if axes else m[x]


@rewrite(reverse(broadcast_to(x), axes=a))
def reverse_of_broadcast(m: Match, emit: Emitter) -> Value | Declined:
    """reverse(broadcast_to(x, s), a) -> reverse(broadcast_to(x, s), a without repeated axes)"""
    (broadcast,), shape = m.operands, aligned(m[x].type.shape, m.type.rank)
    axes = tuple(axis for axis in m[a] if shape[axis] != 1)
    if axes == m[a]:
        return Declined(f"nothing is repeated along any of the axes {list(axes)}")
    return emit(Reverse(axes), broadcast) if axes else broadcast


REVERSE_FOLDING = RewritePass(
    "reverse-folding", (reverse_of_unit_dims, reverse_of_reverse, reverse_of_broadcast)
)
