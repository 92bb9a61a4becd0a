"""Reduces chains of slices to at most one, and reads past the ops that a slice undoes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from gptrs.ir.ops.layout import Concat, Pad, Reverse, Slice
from gptrs.ir.program import Value
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

slice_, pad, reverse = calls(Slice), calls(Pad), calls(Reverse)
x = Operand("x")
low = Attribute[tuple[int, ...]]("low")
interior = Attribute["tuple[int, ...] | None"]("interior")
axes = Attribute[tuple[int, ...]]("axes")

SYMBOLIC = "its dims are symbolic"


@dataclass(frozen=True)
class Span:
    """What a slice reads on one axis: `size` elements from `start` on, in steps of `step`."""

    start: int
    size: int
    step: int

    @property
    def last(self) -> int:
        """The position of the last element; of no meaning when there is none."""
        return self.start + (self.size - 1) * self.step

    def within(self, first: int, count: int) -> bool:
        """Whether it reads no other positions than `first` to `first + count - 1`."""
        return not self.size or (first <= self.start and self.last < first + count)

    def moved(self, offset: int) -> Span:
        """The same elements, where position 0 was `offset`; nothing is read from 0 on."""
        return Span(self.start - offset if self.size else 0, self.size, self.step)


def spans_of(op: Slice) -> list[Span]:
    """What `op` reads on each axis."""
    steps = op.steps(len(op.starts))
    return [Span(*span) for span in zip(op.starts, op.sizes, steps, strict=True)]


def slice_op(spans: list[Span]) -> Slice:
    """The slice that reads `spans`; steps are 1 where one element is read, left out if all are."""
    steps = tuple(1 if span.size in (0, 1) else span.step for span in spans)
    starts, sizes = tuple(span.start for span in spans), tuple(span.size for span in spans)
    return Slice(starts, sizes, None if all(step == 1 for step in steps) else steps)


def root_spans(match: Match) -> list[Span]:
    """What the slice that the whole pattern matched reads on each axis."""
    op = match.root.op
    assert isinstance(op, Slice)
    return spans_of(op)


class SliceOfEverything(Rewrite):
    """slice(x, (0, ..), shape(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A slice."""
        return slice_(x)

    def check(self, match: Match) -> str | None:
        """Refuse if something is left out: the shape says so."""
        if match.type != match[x].type:
            return f"it leaves a part of {list(match[x].type.shape)} out"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class SliceInCanonicalForm(Rewrite):
    """slice(x, s, n, t) -> slice(x, s, n, t with 1 where n is 0 or 1, left out where all are 1)"""

    def pattern(self) -> OpPattern:
        """A slice."""
        return slice_(x)

    def check(self, match: Match) -> str | None:
        """Refuse if it is in that form."""
        if slice_op(root_spans(match)) == match.root.op:
            return "its strides are written as they should be"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The same slice, so that equal slices look equal."""
        return emit(slice_op(root_spans(match)), match[x])


class SliceOfSlice(Rewrite):
    """slice(slice(x, s, n, t), u, m, v) -> slice(x, s + u * t, m, t * v)"""

    def pattern(self) -> OpPattern:
        """A slice of a slice."""
        return slice_(slice_(x))

    def check(self, match: Match) -> str | None:
        """Refuse if dims are symbolic."""
        return None if match[x].type.is_static else SYMBOLIC

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One slice; where nothing is read, it is read from 0 on, which is never past the end."""
        inner = match.definition(match.root.operands[0])
        assert inner is not None
        assert isinstance(inner.op, Slice)
        spans = [
            Span(a.start + b.start * a.step if b.size else 0, b.size, a.step * b.step)
            for a, b in zip(spans_of(inner.op), root_spans(match), strict=True)
        ]
        return emit(slice_op(spans), match[x])


class SliceOfConcat(Rewrite):
    """slice(concat(.., x, ..)) -> slice(x), and slice(concat(.., xs, ..)) -> concat(xs)

    The first where all that is read lies in one operand, the second where it is several in whole.
    """

    def pattern(self) -> OpPattern:
        """A slice; that its operand is a concatenation, of any number of operands, is checked."""
        return slice_(x)

    def check(self, match: Match) -> str | None:
        """Refuse if it reads parts of several operands."""
        node = match.definition(match[x])
        if node is None or not isinstance(node.op, Concat):
            return "its operand is no concatenation"
        if not all(value.type.is_static for value in (match[x], *node.operands)):
            return SYMBOLIC
        if self._part(match) is None and len(self._whole_parts(match)) < 2:
            return f"it cuts through several operands of `concat` on axis {node.op.axis}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A slice of one operand, or the operands that are read."""
        op, _ = self._concat(match)
        part = self._part(match)
        if part is None:
            return emit(op, *self._whole_parts(match))
        value, offset = part
        spans = root_spans(match)
        spans[op.axis] = spans[op.axis].moved(offset)
        return emit(slice_op(spans), value)

    def _concat(self, match: Match) -> tuple[Concat, list[tuple[Value, int]]]:
        """The concatenation, and its operands with the positions where they begin."""
        node = match.definition(match[x])
        assert node is not None
        assert isinstance(node.op, Concat)
        axis = node.op.axis
        offsets = accumulate((value.type.shape[axis] for value in node.operands), initial=0)
        return node.op, list(zip(node.operands, offsets, strict=False))

    def _part(self, match: Match) -> tuple[Value, int] | None:
        """The operand in which all that is read lies, and where it begins."""
        op, parts = self._concat(match)
        span = root_spans(match)[op.axis]
        for value, offset in parts:
            if span.within(offset, value.type.shape[op.axis]):
                return value, offset
        return None

    def _whole_parts(self, match: Match) -> list[Value]:
        """The operands, if they are read in whole and nothing else is."""
        op, parts = self._concat(match)
        spans = root_spans(match)
        span = spans.pop(op.axis)
        others = [dim for axis, dim in enumerate(match[x].type.shape) if axis != op.axis]
        if span.step != 1 or [other.size for other in spans] != others:
            return []
        read = [
            value
            for value, offset in parts
            if span.start <= offset and offset + value.type.shape[op.axis] <= span.last + 1
        ]
        return read if sum(v.type.shape[op.axis] for v in read) == span.size else []


class SliceOfPad(Rewrite):
    """slice(pad(x, low), s) -> slice(x, s - low) where nothing of the padding is read"""

    def pattern(self) -> OpPattern:
        """A slice of a padded tensor."""
        return slice_(pad(x, low=low, interior=interior))

    def check(self, match: Match) -> str | None:
        """Refuse if there are values between the elements, or if padding is read."""
        if not match[x].type.is_static or symbols_of(match[low]):
            return SYMBOLIC
        if any(between != 0 for between in match[interior] or ()):
            return f"values are put between the elements, {list(match[interior] or ())}"
        sides = zip(root_spans(match), match[low], match[x].type.shape, strict=True)
        for axis, (span, before, dim) in enumerate(sides):
            if not span.within(before, dim):
                return f"it reads padding on axis {axis}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The same elements at their places in the operand."""
        sides = zip(root_spans(match), match[low], strict=True)
        return emit(slice_op([span.moved(before) for span, before in sides]), match[x])


class SliceOfReverse(Rewrite):
    """slice(reverse(x, a), s) -> slice(x, dim - 1 - s) where at most one element is read along a"""

    def pattern(self) -> OpPattern:
        """A slice of a reversed tensor."""
        return slice_(reverse(x, axes=axes))

    def check(self, match: Match) -> str | None:
        """Refuse if several elements are read along a reversed axis."""
        if not match[x].type.is_static:
            return SYMBOLIC
        spans = root_spans(match)
        long = [axis for axis in match[axes] if spans[axis].size > 1]
        return f"it reads several elements along the reversed axes {long}" if long else None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The same elements at their places in the operand."""
        spans = root_spans(match)
        for axis in match[axes]:
            last = match[x].type.shape[axis] - 1
            start = last - spans[axis].start if spans[axis].size else 0
            spans[axis] = Span(start, spans[axis].size, 1)
        return emit(slice_op(spans), match[x])


SLICE_FOLDING = RewritePass(
    "slice-folding",
    (
        SliceOfEverything(),
        SliceOfSlice(),
        SliceOfConcat(),
        SliceOfPad(),
        SliceOfReverse(),
        SliceInCanonicalForm(),
    ),
)
