"""Flattens concatenations, and drops those that put together nothing, or what was one before."""

from __future__ import annotations

from itertools import pairwise

from gptrs.ir.ops.layout import Concat, Slice
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.passes.slice_folding import Span, slice_op, spans_of
from gptrs.optimizer.rewrite.pattern import Match, Operands, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

concat = calls(Concat)

MAX_OPERANDS = 64
"""A concatenation takes in no more than this of what is nested in it, so that time is linear."""

xs = Operands("xs")


class ConcatRewrite(Rewrite):
    """A rewrite of a `concat` of any number of operands."""

    def pattern(self) -> OpPattern:
        """A concatenation."""
        return concat(xs)


def _axis(match: Match) -> int:
    op = match.root.op
    assert isinstance(op, Concat)
    return op.axis


class ConcatOfOne(ConcatRewrite):
    """concat(x) -> x"""

    def check(self, match: Match) -> str | None:
        """Refuse if there are several operands."""
        return None if len(match[xs]) == 1 else f"it has {len(match[xs])} operands"

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[xs][0]


class ConcatOfEmpty(ConcatRewrite):
    """concat(x, empty, y) -> concat(x, y); of nothing but empty ones, the first of them"""

    def check(self, match: Match) -> str | None:
        """Refuse if no operand is known to be empty along the axis."""
        if len(self._full(match)) == len(match[xs]):
            return f"no operand is empty on axis {_axis(match)}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The others."""
        full = self._full(match)
        if len(full) < 2:
            return (full or match[xs])[0]
        return emit(Concat(_axis(match)), *full)

    def _full(self, match: Match) -> list[Value]:
        axis = _axis(match)
        return [value for value in match[xs] if value.type.shape[axis] != 0]


class ConcatOfConcat(ConcatRewrite):
    """concat(x, concat(y, z)) -> concat(x, y, z) along one axis"""

    def check(self, match: Match) -> str | None:
        """Refuse if no operand is a concatenation along the same axis, or if it gets too long."""
        flat = self._flat(match)
        if tuple(flat) == match[xs]:
            return f"no operand is a concatenation along axis {_axis(match)}"
        if len(flat) > MAX_OPERANDS:
            return f"it would have {len(flat)} operands, more than {MAX_OPERANDS}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The operands of both."""
        return emit(Concat(_axis(match)), *self._flat(match))

    def _flat(self, match: Match) -> list[Value]:
        flat: list[Value] = []
        for value in match[xs]:
            node = match.definition(value)
            nested = node is not None and node.op == match.root.op
            flat.extend(node.operands if node is not None and nested else [value])
        return flat


class ConcatOfSlices(ConcatRewrite):
    """concat(slice(x, s, n), slice(x, s + n, m)) -> slice(x, s, n + m)

    All operands are read from one tensor, next to one another along the axis, and in the same
    places on every other.
    """

    def check(self, match: Match) -> str | None:
        """Refuse if an operand is no slice, or one of something else, or of another place."""
        slices = self._slices(match)
        if len({source for source, _ in slices}) != 1 or len(slices) < len(match[xs]):
            return "its operands are not slices of one tensor"
        if not slices[0][0].type.is_static:
            return "its dims are symbolic"
        axis = _axis(match)
        if not all(_adjacent(a, b, axis) for (_, a), (_, b) in pairwise(slices)):
            return f"its operands were not next to one another on axis {axis}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One slice."""
        axis, slices = _axis(match), self._slices(match)
        source, spans = slices[0]
        spans[axis] = Span(spans[axis].start, match.type.shape[axis], spans[axis].step)
        return emit(slice_op(spans), source)

    def _slices(self, match: Match) -> list[tuple[Value, list[Span]]]:
        """What each operand that is a slice is read from, and where."""
        found: list[tuple[Value, list[Span]]] = []
        for value in match[xs]:
            node = match.definition(value)
            if node is not None and isinstance(node.op, Slice):
                found.append((node.operands[0], spans_of(node.op)))
        return found


def _adjacent(first: list[Span], second: list[Span], axis: int) -> bool:
    """Whether `second` goes on along `axis` where `first` ended, and agrees with it elsewhere."""
    a, b = first[axis], second[axis]
    if not a.size or not b.size or a.step != b.step or b.start != a.last + a.step:
        return False
    return first[:axis] + first[axis + 1 :] == second[:axis] + second[axis + 1 :]


CONCAT_FOLDING = RewritePass(
    "concat-folding", (ConcatOfOne(), ConcatOfEmpty(), ConcatOfConcat(), ConcatOfSlices())
)
