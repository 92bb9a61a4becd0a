"""Reduces chains of broadcasts to at most one, and moves elements before they are repeated."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Reshape, Slice, Transpose
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.exact_ops import accepts
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.slice_folding import Span, slice_op, spans_of
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

broadcast_to, reshape, slice_ = calls(BroadcastTo), calls(Reshape), calls(Slice)
transpose, reduce = calls(Transpose), calls(Reduce)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")
axes = Attribute[tuple[int, ...]]("axes")

UNDECIDED = "with symbolic dims it is open whether they can be reshaped like that"


def _core(shape: Shape) -> Shape:
    """`shape` without the 1s in front."""
    lead = next((axis for axis, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[lead:]


def aligned(shape: Shape, rank: int) -> Shape:
    """`shape` with 1s in front, as `broadcast_to` aligns it with that many axes."""
    return (1,) * (rank - len(shape)) + shape


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


class BroadcastOfReshape(Rewrite):
    """broadcast_to(reshape(x, s), t) -> broadcast_to(x, t) if s is shape(x) but for 1s in front"""

    def pattern(self) -> OpPattern:
        """A broadcast of a reshape."""
        return broadcast_to(reshape(x))

    def check(self, match: Match) -> str | None:
        """Refuse if the reshape does more than that, or if x has more axes than the result."""
        (inner,), shape = match.root.operands, match[x].type.shape
        if _core(shape) != _core(inner.type.shape):
            return f"{list(shape)} and {list(inner.type.shape)} differ by more than 1s in front"
        if len(shape) > match.type.rank:
            return f"{list(shape)} has more axes than {list(match.type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The broadcast, which puts 1s in front by itself."""
        return emit(BroadcastTo(match.type.shape), match[x])


class ReshapeOfBroadcast(Rewrite):
    """reshape(broadcast_to(x, s), t) -> broadcast_to(x, t) where x has one element"""

    def pattern(self) -> OpPattern:
        """A reshaped broadcast."""
        return reshape(broadcast_to(x))

    def check(self, match: Match) -> str | None:
        """Refuse if x has several elements, or more axes than the result."""
        shape = match[x].type.shape
        if any(dim != 1 for dim in shape):
            return f"{list(shape)} has more than one element"
        if len(shape) > match.type.rank:
            return f"{list(shape)} has more axes than {list(match.type.shape)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The element repeated to the shape of the result."""
        return emit(BroadcastTo(match.type.shape), match[x])


class TransposeOfBroadcast(Rewrite):
    """transpose(broadcast_to(x, s), p) -> broadcast_to(transpose(x, q), s[p])

    q is what p does to the axes of x. Where that leaves all but 1s in order, it is a reshape.
    """

    def pattern(self) -> OpPattern:
        """A transposed broadcast."""
        return transpose(broadcast_to(x), permutation=p)

    def check(self, match: Match) -> str | None:
        """Refuse if a reshape and a transpose of x were needed."""
        lead = match.type.rank - match[x].type.rank
        if self._is_reshape(match):
            return None if accepts(self._reshape(match), match[x].type) else UNDECIDED
        if sorted(match[p][:lead]) != list(range(lead)):
            return f"axes that x does not have move among those that it has, by {list(match[p])}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The elements in the new order, then repeated."""
        lead = match.type.rank - match[x].type.rank
        own = tuple(axis - lead for axis in match[p][lead:])
        move = self._reshape(match) if self._is_reshape(match) else Transpose(own)
        return emit(BroadcastTo(match.type.shape), emit(move, match[x]))

    def _reshape(self, match: Match) -> Reshape:
        shape = aligned(match[x].type.shape, match.type.rank)
        return Reshape(_core(tuple(shape[axis] for axis in match[p])))

    def _is_reshape(self, match: Match) -> bool:
        shape = aligned(match[x].type.shape, match.type.rank)
        moved = [axis for axis in match[p] if shape[axis] != 1]
        return moved == sorted(moved)


class SliceOfBroadcast(Rewrite):
    """slice(broadcast_to(x, s)) -> broadcast_to(slice(x)), or broadcast_to(x) if x is whole"""

    def pattern(self) -> OpPattern:
        """A sliced broadcast."""
        return slice_(broadcast_to(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The part of x that is read, repeated to the shape of the result."""
        op = match.root.op
        assert isinstance(op, Slice)
        shape, lead = match[x].type.shape, match.type.rank - match[x].type.rank
        own = zip(shape, spans_of(op)[lead:], strict=True)
        part = slice_op([Span(0, 1, 1) if dim == 1 else span for dim, span in own])
        part = match[x] if part.sizes == shape else emit(part, match[x])
        return emit(BroadcastTo(match.type.shape), part)


class ReduceOfBroadcast(Rewrite):
    """reduce(broadcast_to(x, s), a) -> broadcast_to(reshape(x, ..), ..) of max, min, and, or

    Along the axes a, x is repeated, at least once: the extreme of equals is each of them.
    """

    def pattern(self) -> OpPattern:
        """A reduced broadcast."""
        return reduce(broadcast_to(x), axes=axes)

    def check(self, match: Match) -> str | None:
        """Refuse other kinds, conversions, and axes along which elements differ or are missing."""
        op = _reduction(match)
        if op.kind not in ("max", "min", "and", "or"):
            return f"a {op.kind} counts how often an element is repeated"
        if match.type.dtype is not match[x].type.dtype:
            return f"the result is converted to {match.type.dtype}"
        (operand,) = match.root.operands
        shape = aligned(match[x].type.shape, operand.type.rank)
        if any(shape[axis] != 1 for axis in match[axes]):
            return f"elements differ along one of the axes {list(match[axes])}"
        dims = [operand.type.shape[axis] for axis in match[axes]]
        if symbols_of(dims) or 0 in dims:
            return f"there may be no elements along one of the axes {list(match[axes])}"
        return None if accepts(self._reshape(match), match[x].type) else UNDECIDED

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """x without the axes that went, repeated along the others."""
        return emit(BroadcastTo(match.type.shape), emit(self._reshape(match), match[x]))

    def _reshape(self, match: Match) -> Reshape:
        (operand,), keepdims = match.root.operands, _reduction(match).keepdims
        shape = aligned(match[x].type.shape, operand.type.rank)
        kept = (dim for axis, dim in enumerate(shape) if keepdims or axis not in match[axes])
        return Reshape(_core(tuple(kept)))


def _reduction(match: Match) -> Reduce:
    op = match.root.op
    assert isinstance(op, Reduce)
    return op


BROADCAST_FOLDING = RewritePass(
    "broadcast-folding",
    (
        BroadcastToSameShape(),
        BroadcastOfBroadcast(),
        BroadcastOfReshape(),
        ReshapeOfBroadcast(),
        TransposeOfBroadcast(),
        SliceOfBroadcast(),
        ReduceOfBroadcast(),
    ),
)
