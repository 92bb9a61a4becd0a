"""Reduces chains of broadcasts to at most one, and moves elements before repeating them."""

from __future__ import annotations

from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Reverse, Slice, Transpose
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.exact_values import accepts
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.slice_folding import Span, slice_op, spans_of
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Emitter,
    Match,
    Operand,
    calls,
    rewrite,
)

broadcast_to, reshape, slice_ = calls(BroadcastTo), calls(Reshape), calls(Slice)
transpose, reduce = calls(Transpose), calls(Reduce)
x = Operand("x")
p = Attribute[tuple[int, ...]]("p")
axes = Attribute[tuple[int, ...]]("axes")

UNDECIDED = Declined("with symbolic dims it is open whether they can be reshaped like that")


def _core(shape: Shape) -> Shape:
    """Return `shape` without the 1s in front."""
    lead = next((axis for axis, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[lead:]


def aligned(shape: Shape, rank: int) -> Shape:
    """Return `shape` with 1s in front, as `broadcast_to` aligns it with that many axes."""
    return (1,) * (rank - len(shape)) + shape


@rewrite(broadcast_to(x))
def broadcast_to_same_shape(m: Match, emit: Emitter) -> Value | Declined:
    """broadcast_to(x, shape(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"the shape changes to {list(m.type.shape)}")
    return m[x]


@rewrite(broadcast_to(broadcast_to(x)))
def broadcast_of_broadcast(m: Match, emit: Emitter) -> Value:
    """broadcast_to(broadcast_to(x, s), t) -> broadcast_to(x, t)

    A dim of x that fits `s`, which fits `t`, fits `t`.
    """
    return emit(BroadcastTo(m.type.shape), m[x])


@rewrite(broadcast_to(reshape(x)))
def broadcast_of_reshape(m: Match, emit: Emitter) -> Value | Declined:
    """broadcast_to(reshape(x, s), t) -> broadcast_to(x, t) if s is shape(x) with leading 1s"""
    (inner,), shape = m.operands, m[x].type.shape
    if _core(shape) != _core(inner.type.shape):
        differ = f"{list(shape)} and {list(inner.type.shape)} differ"
        return Declined(f"{differ} by more than 1s in front")
    if len(shape) > m.type.rank:
        return Declined(f"{list(shape)} has more axes than {list(m.type.shape)}")
    return emit(BroadcastTo(m.type.shape), m[x])


@rewrite(reshape(broadcast_to(x)))
def reshape_of_broadcast(m: Match, emit: Emitter) -> Value | Declined:
    """reshape(broadcast_to(x, s), t) -> broadcast_to(x, t) where x has one element"""
    shape = m[x].type.shape
    if any(dim != 1 for dim in shape):
        return Declined(f"{list(shape)} has more than one element")
    if len(shape) > m.type.rank:
        return Declined(f"{list(shape)} has more axes than {list(m.type.shape)}")
    return emit(BroadcastTo(m.type.shape), m[x])


@rewrite(transpose(broadcast_to(x), permutation=p))
def transpose_of_broadcast(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(broadcast_to(x, s), p) -> broadcast_to(transpose(x, q), s[p])

    q is p restricted to the axes of x. If all dims but 1s keep their order, the transpose is a
    reshape.
    """
    lead = m.type.rank - m[x].type.rank
    shape = aligned(m[x].type.shape, m.type.rank)
    moved = [axis for axis in m[p] if shape[axis] != 1]
    if moved == sorted(moved):
        move = Reshape(_core(tuple(shape[axis] for axis in m[p])))
        if not accepts(move, m[x].type):
            return UNDECIDED
    elif sorted(m[p][:lead]) == list(range(lead)):
        move = Transpose(tuple(axis - lead for axis in m[p][lead:]))
    else:
        moves = f"axes that x does not have move among those that it has, by {list(m[p])}"
        return Declined(moves)
    return emit(BroadcastTo(m.type.shape), emit(move, m[x]))


@rewrite(slice_(broadcast_to(x)))
def slice_of_broadcast(m: Match, emit: Emitter) -> Value:
    """slice(broadcast_to(x, s)) -> broadcast_to(slice(x)), or broadcast_to(x) if x is whole"""
    shape, lead = m[x].type.shape, m.type.rank - m[x].type.rank
    own = zip(shape, spans_of(m[slice_])[lead:], strict=True)
    part = slice_op([Span(0, 1, 1) if dim == 1 else span for dim, span in own])
    part = m[x] if part.sizes == shape else emit(part, m[x])
    return emit(BroadcastTo(m.type.shape), part)


@rewrite(reduce(broadcast_to(x), axes=axes))
def reduce_of_broadcast(m: Match, emit: Emitter) -> Value | Declined:
    """reduce(broadcast_to(x, s), a) -> broadcast_to(reshape(x, ..), ..) of max, min, and, or

    x is only repeated along the axes a, at least once, and the extreme of equal elements is that
    element.
    """
    if m[reduce].kind not in ("max", "min", "and", "or"):
        return Declined(f"a {m[reduce].kind} counts how often an element is repeated")
    if m.type.dtype is not m[x].type.dtype:
        return Declined(f"the result is converted to {m.type.dtype}")
    (operand,) = m.operands
    shape = aligned(m[x].type.shape, operand.type.rank)
    if any(shape[axis] != 1 for axis in m[axes]):
        return Declined(f"elements differ along one of the axes {list(m[axes])}")
    dims = [operand.type.shape[axis] for axis in m[axes]]
    if symbols_of(dims) or 0 in dims:
        return Declined(f"there may be no elements along one of the axes {list(m[axes])}")
    keep = m[reduce].keepdims
    kept = (dim for axis, dim in enumerate(shape) if keep or axis not in m[axes])
    without = Reshape(_core(tuple(kept)))
    if not accepts(without, m[x].type):
        return UNDECIDED
    return emit(BroadcastTo(m.type.shape), emit(without, m[x]))


BROADCAST_FOLDING = RewritePass(
    "broadcast-folding",
    (
        broadcast_to_same_shape,
        broadcast_of_broadcast,
        broadcast_of_reshape,
        reshape_of_broadcast,
        transpose_of_broadcast,
        slice_of_broadcast,
        reduce_of_broadcast,
    ),
)


# Reduces chains of reversals to at most one, along axes where it has an effect.


reverse, broadcasting = calls(Reverse), calls(BroadcastTo)
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

    Two reversals along one axis cancel.
    """
    axes = tuple(sorted(set(m[a]) ^ set(m[b])))
    return emit(Reverse(axes), m[x]) if axes else m[x]


@rewrite(reverse(broadcasting(x), axes=a))
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
