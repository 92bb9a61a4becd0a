"""Reduces chains of slices to at most one, and reads past the ops that a slice undoes."""

from __future__ import annotations

from itertools import accumulate

from gptrs.ir.ops.layout import Concat, Pad, Reverse, Slice
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite
from gptrs.quick_dataclass import dataclass

slice_, inner_slice = calls(Slice), calls(Slice)
pad, reverse = calls(Pad), calls(Reverse)
x = Operand("x")
low = Attribute[tuple[int, ...]]("low")
interior = Attribute["tuple[int, ...] | None"]("interior")
axes = Attribute[tuple[int, ...]]("axes")

SYMBOLIC = Declined("its dims are symbolic")


@dataclass(frozen=True)
class Span:
    """The part of an axis that a slice reads: `size` elements from `start`, `step` apart."""

    start: int
    size: int
    step: int

    @property
    def last(self) -> int:
        """The position of the last element; of no meaning when there is none."""
        return self.start + (self.size - 1) * self.step

    def within(self, first: int, count: int) -> bool:
        """Return whether it reads no other positions than `first` to `first + count - 1`."""
        return not self.size or (first <= self.start and self.last < first + count)

    def moved(self, offset: int) -> Span:
        """Return the same elements, where position 0 was `offset`; nothing is read from 0 on."""
        return Span(self.start - offset if self.size else 0, self.size, self.step)


def spans_of(op: Slice) -> list[Span]:
    """Return what `op` reads on each axis."""
    steps = op.steps(len(op.starts))
    return [Span(*span) for span in zip(op.starts, op.sizes, steps, strict=True)]


def slice_op(spans: list[Span]) -> Slice:
    """Return the slice that reads `spans`.

    Steps are 1 where one element is read, left out if all are.
    """
    steps = tuple(1 if span.size in (0, 1) else span.step for span in spans)
    starts, sizes = tuple(span.start for span in spans), tuple(span.size for span in spans)
    return Slice(starts, sizes, None if all(step == 1 for step in steps) else steps)


@rewrite(slice_(x))
def slice_of_everything(m: Match, emit: Emitter) -> Value | Declined:
    """slice(x, (0, ..), shape(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"it leaves a part of {list(m[x].type.shape)} out")
    return m[x]


@rewrite(slice_(x))
def slice_in_canonical_form(m: Match, emit: Emitter) -> Value | Declined:
    """slice(x, s, n, t) -> slice(x, s, n, t with 1 where n is 0 or 1, left out where all are 1)"""
    canonical = slice_op(spans_of(m[slice_]))
    if canonical == m[slice_]:
        return Declined("its strides are written as they should be")
    return emit(canonical, m[x])


@rewrite(slice_(inner_slice(x)))
def slice_of_slice(m: Match, emit: Emitter) -> Value | Declined:
    """slice(slice(x, s, n, t), u, m, v) -> slice(x, s + u * t, m, t * v)"""
    if not m[x].type.is_static:
        return SYMBOLIC
    # Where nothing is read, it is read from 0 on, which is never past the end.
    spans = [
        Span(a.start + b.start * a.step if b.size else 0, b.size, a.step * b.step)
        for a, b in zip(spans_of(m[inner_slice]), spans_of(m[slice_]), strict=True)
    ]
    return emit(slice_op(spans), m[x])


@rewrite(slice_(x))
def slice_of_concat(m: Match, emit: Emitter) -> Value | Declined:
    """slice(concat(.., x, ..)) -> slice(x), and slice(concat(.., xs, ..)) -> concat(xs)

    The first where all that is read lies in one operand, the second where it is several in whole.
    """
    node = m.definition(m[x])
    if node is None or not isinstance(node.op, Concat):
        return Declined("its operand is no concatenation")
    if not all(value.type.is_static for value in (m[x], *node.operands)):
        return SYMBOLIC
    axis, spans = node.op.axis, spans_of(m[slice_])
    sizes = [value.type.shape[axis] for value in node.operands]
    parts = list(zip(node.operands, accumulate(sizes, initial=0), sizes, strict=False))
    for value, start, size in parts:
        if spans[axis].within(start, size):
            spans[axis] = spans[axis].moved(start)
            return emit(slice_op(spans), value)
    whole = _whole_parts(parts, spans, axis, m[x].type.shape)
    if len(whole) < 2:
        return Declined(f"it cuts through several operands of `concat` on axis {axis}")
    return emit(node.op, *whole)


def _whole_parts(
    parts: list[tuple[Value, int, int]], spans: list[Span], axis: int, shape: Shape
) -> list[Value]:
    """Return those of `parts` (value, start, size) that are read, if all of them are in whole."""
    span = spans[axis]
    others = [other.size for at, other in enumerate(spans) if at != axis]
    if span.step != 1 or others != [dim for at, dim in enumerate(shape) if at != axis]:
        return []
    read = [
        (value, size)
        for value, start, size in parts
        if span.start <= start and start + size <= span.last + 1
    ]
    return [value for value, _ in read] if sum(size for _, size in read) == span.size else []


@rewrite(slice_(pad(x, low=low, interior=interior)))
def slice_of_pad(m: Match, emit: Emitter) -> Value | Declined:
    """slice(pad(x, low), s) -> slice(x, s - low) where nothing of the padding is read"""
    if not m[x].type.is_static or symbols_of(m[low]):
        return SYMBOLIC
    if any(between != 0 for between in m[interior] or ()):
        return Declined(f"values are put between the elements, {list(m[interior] or ())}")
    sides = list(zip(spans_of(m[slice_]), m[low], m[x].type.shape, strict=True))
    for axis, (span, before, dim) in enumerate(sides):
        if not span.within(before, dim):
            return Declined(f"it reads padding on axis {axis}")
    return emit(slice_op([span.moved(before) for span, before, _ in sides]), m[x])


@rewrite(slice_(reverse(x, axes=axes)))
def slice_of_reverse(m: Match, emit: Emitter) -> Value | Declined:
    """slice(reverse(x, a), s) -> slice(x, dim - 1 - s) where at most one element is read along a"""
    if not m[x].type.is_static:
        return SYMBOLIC
    spans = spans_of(m[slice_])
    if long := [axis for axis in m[axes] if spans[axis].size > 1]:
        return Declined(f"it reads several elements along the reversed axes {long}")
    for axis in m[axes]:
        last = m[x].type.shape[axis] - 1
        start = last - spans[axis].start if spans[axis].size else 0
        spans[axis] = Span(start, spans[axis].size, 1)
    return emit(slice_op(spans), m[x])


SLICE_FOLDING = RewritePass(
    "slice-folding",
    (
        slice_of_everything,
        slice_of_slice,
        slice_of_concat,
        slice_of_pad,
        slice_of_reverse,
        slice_in_canonical_form,
    ),
)
