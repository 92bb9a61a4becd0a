"""Flattens concatenations, and drops those that put together nothing, or what was one before."""

from __future__ import annotations

from itertools import pairwise

from gptrs.ir.ops.layout import Concat, Slice
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.slice_folding import Span, slice_op, spans_of
from gptrs.optimizer.rewrite.pattern import Match, Operands, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

concat = calls(Concat)
xs = Operands("xs")

MAX_OPERANDS = 64
"""A concatenation takes in no more than this of what is nested in it, so that time is linear."""


@rewrite(concat(xs))
def concat_of_one(m: Match, emit: Emitter) -> Value | Declined:
    """concat(x) -> x"""
    return m[xs][0] if len(m[xs]) == 1 else Declined(f"it has {len(m[xs])} operands")


@rewrite(concat(xs))
def concat_of_empty(m: Match, emit: Emitter) -> Value | Declined:
    """concat(x, empty, y) -> concat(x, y); of nothing but empty ones, the first of them"""
    axis = m[concat].axis
    full = [value for value in m[xs] if value.type.shape[axis] != 0]
    if len(full) == len(m[xs]):
        return Declined(f"no operand is empty on axis {axis}")
    return emit(Concat(axis), *full) if len(full) > 1 else (full or m[xs])[0]


@rewrite(concat(xs))
def concat_of_concat(m: Match, emit: Emitter) -> Value | Declined:
    """concat(x, concat(y, z)) -> concat(x, y, z) along one axis"""
    flat: list[Value] = []
    for value in m[xs]:
        node = m.definition(value)
        flat.extend(node.operands if node is not None and node.op == m[concat] else [value])
    if tuple(flat) == m[xs]:
        return Declined(f"no operand is a concatenation along axis {m[concat].axis}")
    if len(flat) > MAX_OPERANDS:
        return Declined(f"it would have {len(flat)} operands, more than {MAX_OPERANDS}")
    return emit(m[concat], *flat)


@rewrite(concat(xs))
def concat_of_slices(m: Match, emit: Emitter) -> Value | Declined:
    """concat(slice(x, s, n), slice(x, s + n, m)) -> slice(x, s, n + m)

    All operands are read from one tensor, next to one another along the axis, and in the same
    places on every other.
    """
    slices, axis = _slices(m), m[concat].axis
    if len({source for source, _ in slices}) != 1 or len(slices) < len(m[xs]):
        return Declined("its operands are not slices of one tensor")
    source, spans = slices[0]
    if not source.type.is_static:
        return Declined("its dims are symbolic")
    if not all(_adjacent(a, b, axis) for (_, a), (_, b) in pairwise(slices)):
        return Declined(f"its operands were not next to one another on axis {axis}")
    spans[axis] = Span(spans[axis].start, m.type.shape[axis], spans[axis].step)
    return emit(slice_op(spans), source)


def _slices(m: Match) -> list[tuple[Value, list[Span]]]:
    """Return the source and the spans of each operand that is a slice."""
    nodes = [node for value in m[xs] if (node := m.definition(value))]
    return [(node.operands[0], spans_of(node.op)) for node in nodes if isinstance(node.op, Slice)]


def _adjacent(first: list[Span], second: list[Span], axis: int) -> bool:
    """Return whether `second` goes on along `axis` where `first` ended, and agrees elsewhere."""
    a, b = first[axis], second[axis]
    if not a.size or not b.size or a.step != b.step or b.start != a.last + a.step:
        return False
    return first[:axis] + first[axis + 1 :] == second[:axis] + second[axis + 1 :]


CONCAT_FOLDING = RewritePass(
    "concat-folding", (concat_of_one, concat_of_empty, concat_of_concat, concat_of_slices)
)
