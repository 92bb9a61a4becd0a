"""Reduces chains of slices to at most one, and moves them before ops whose effect they discard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.layout import Concat, Pad, Reshape, Reverse, Slice, Transpose
from gptrs.ir.ops.window import ExtractPatches
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Emitter,
    Match,
    Operand,
    Operands,
    calls,
    rewrite,
)
from gptrs.optimizer.rewrite.rewriter import InstructionNode

slice_, inner_slice = calls(Slice), calls(Slice)
pad, reverse = calls(Pad), calls(Reverse)
x = Operand("x")
low = Attribute[tuple[int, ...]]("low")
interior = Attribute["tuple[int, ...] | None"]("interior")
axes = Attribute[tuple[int, ...]]("axes")

SYMBOLIC = Declined("its dims are symbolic")


class Span(Struct, frozen=True):
    """The part of an axis that a slice reads: `size` elements from `start`, `step` apart."""

    start: int
    size: int
    step: int

    @property
    def last(self) -> int:
        """The index of the last element; meaningless if there is none."""
        return self.start + (self.size - 1) * self.step

    def within(self, first: int, count: int) -> bool:
        """Return whether it reads only indices from `first` to `first + count - 1`."""
        return not self.size or (first <= self.start and self.last < first + count)

    def moved(self, offset: int) -> Span:
        """Return the same elements with indices relative to `offset`; an empty span starts at 0."""
        return Span(self.start - offset if self.size else 0, self.size, self.step)


def spans_of(op: Slice) -> list[Span]:
    """Return what `op` reads on each axis."""
    steps = op.steps(len(op.starts))
    return [Span(*span) for span in zip(op.starts, op.sizes, steps, strict=True)]


def slice_op(spans: list[Span]) -> Slice:
    """Return the slice that reads `spans`.

    Steps are 1 for a single element, and left out if all are 1.
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
    # An empty slice starts at 0, which is never past the end.
    spans = [
        Span(a.start + b.start * a.step if b.size else 0, b.size, a.step * b.step)
        for a, b in zip(spans_of(m[inner_slice]), spans_of(m[slice_]), strict=True)
    ]
    return emit(slice_op(spans), m[x])


@rewrite(slice_(x))
def slice_of_concat(m: Match, emit: Emitter) -> Value | Declined:
    """slice(concat(.., x, ..)) -> slice(x), and slice(concat(.., xs, ..)) -> concat(xs)

    The first if everything read lies in one operand, the second if it is several whole operands.
    """
    node = m.definition(m[x])
    if node is None or not isinstance(node.op, Concat):
        return Declined("its operand is not a concatenation")
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
    """Return the `parts` (value, start, size) that are read, if each is read completely."""
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


# Flattens concatenations, and drops those of a single operand, or of parts of one tensor.


concat = calls(Concat)
xs = Operands("xs")

MAX_OPERANDS = 64
"""Most operands of a flattened concatenation, so that time is linear."""


@rewrite(concat(xs))
def concat_of_one(m: Match, emit: Emitter) -> Value | Declined:
    """concat(x) -> x"""
    return m[xs][0] if len(m[xs]) == 1 else Declined(f"it has {len(m[xs])} operands")


@rewrite(concat(xs))
def concat_of_empty(m: Match, emit: Emitter) -> Value | Declined:
    """concat(x, empty, y) -> concat(x, y); the first one if all are empty"""
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

    All operands are adjacent slices of one tensor along the axis, with equal ranges on every other
    axis.
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
    """Return whether `second` continues `first` along `axis`, and agrees on other axes."""
    a, b = first[axis], second[axis]
    if not a.size or not b.size or a.step != b.step or b.start != a.last + a.step:
        return False
    return first[:axis] + first[axis + 1 :] == second[:axis] + second[axis + 1 :]


CONCAT_FOLDING = RewritePass(
    "concat-folding", (concat_of_one, concat_of_empty, concat_of_concat, concat_of_slices)
)


# Absorbs a zero pad around images into the padding of the windows that read them.


patches = calls(ExtractPatches)

SYMBOLIC_PADDING = Declined("its padding is symbolic")

Axes = tuple[int | None, ...]
"""For each axis of a value, the axis of the padded tensor; None if none or several."""


@rewrite(patches(x))
def patches_of_pad(m: Match, emit: Emitter) -> Value | Declined:
    """extract_patches(f(pad(x, l, h)), p) -> extract_patches(f(x), p + (l, h)) where f moves axes

    The pad adds zeros around spatial axes; f is any chain that `without_zeros` accepts.
    """
    if not _is_zero(m[patches].value, m.type.dtype):
        return Declined("other values than zeros are put around it")
    found = without_zeros(m[x], m.definition, m.is_read_once)
    if isinstance(found, Declined):
        return found
    bare, ops, sides = found
    for op in ops:
        bare = emit(op, bare)
    own = [side for axis in m[patches].axes() for side in (axis.low, axis.high)]
    padding = tuple(map(sum, zip(own, sides, strict=True)))
    return emit(replace(m[patches], padding=padding if any(padding) else None), bare)


Unpadded = tuple[Value, list[Op], Sequence[int]]


def without_zeros(
    image: Value,
    definition: Callable[[Value], InstructionNode | None],
    is_read_once: Callable[[Value], bool],
) -> Unpadded | Declined:
    """Return the operand of a zero pad, the ops from it to the image, and the zeros.

    The image is [N, spatial.., C]; the zeros are (low, high) of each spatial axis. Between pad and
    image there may be transposes, casts, and reshapes that keep the padded axes, whose results
    nothing else reads. Other readers of the pad are unaffected.
    """
    chain, found = _chain(image, definition, is_read_once)
    if found is None or not isinstance(found.op, Pad):
        return Declined("its operand is not padded")
    pad, (bare,) = found.op, found.operands
    if not _is_zero(pad.value, bare.type.dtype):
        return Declined("other values than zeros are put around it")
    if symbols_of((*pad.low, *pad.high)):
        return SYMBOLIC_PADDING
    if any(pad.interior or ()) or any(side < 0 for side in (*pad.low, *pad.high)):
        return Declined("the pad trims, or puts zeros between the elements")
    padded = frozenset(axis for axis in range(bare.type.rank) if pad.low[axis] or pad.high[axis])
    ops, axes = _without_padding(chain, bare.type.shape, padded)
    if not padded.issubset(axes[1:-1]):
        return Declined(f"the padded axes {sorted(padded)} do not all become spatial ones")
    ends = [(0, 0) if axis is None else (pad.low[axis], pad.high[axis]) for axis in axes[1:-1]]
    return bare, ops, [side for pair in ends for side in pair]


def _chain(
    image: Value,
    definition: Callable[[Value], InstructionNode | None],
    is_read_once: Callable[[Value], bool],
) -> tuple[list[InstructionNode], InstructionNode | None]:
    """Return the ops that move a value on its way to an image, in order, and its definition."""
    chain: list[InstructionNode] = []
    node = definition(image)
    while node is not None and isinstance(node.op, (Transpose, Cast, Reshape)):
        # Else these moves would be computed twice, with and without the padding.
        if not is_read_once(node.results[0]):
            break
        chain.insert(0, node)
        node = definition(node.operands[0])
    return chain, node


def _is_zero(value: Scalar | None, dtype: DType) -> bool:
    return value is None or value == Literal.full(0, dtype)


def _without_padding(
    chain: Sequence[InstructionNode], shape: Shape, padded: frozenset[int]
) -> tuple[list[Op], Axes]:
    """Return the ops of a chain adapted to an unpadded value of `shape`, and the resulting axes."""
    axes: Axes = tuple(range(len(shape)))
    ops: list[Op] = []
    for node in chain:
        op, after = node.op, node.results[0].type.shape
        if isinstance(op, Transpose):
            axes = tuple(axes[axis] for axis in op.permutation)
        elif isinstance(op, Reshape):
            before = node.operands[0].type.shape
            axes = _kept([axis if axis in padded else None for axis in axes], before, after)
            pairs = zip(axes, after, strict=True)
            op = Reshape(tuple(dim if axis is None else shape[axis] for axis, dim in pairs))
        ops.append(op)
    return ops, axes


def _kept(axes: Sequence[int | None], before: Shape, after: Shape) -> Axes:
    """Return the axes of a reshaped value: `axes` where they are kept whole, else None."""
    found: list[int | None] = [None] * len(after)
    # A kept axis has as many elements before it as it had. Axes of size 1 share that number with
    # the next one, and a size of 0 makes all products equal.
    if not symbols_of((*before, *after)) and math.prod(before):
        starts = {math.prod(after[:at]): at for at, dim in enumerate(after) if dim > 1}
        for at, (axis, dim) in enumerate(zip(axes, before, strict=True)):
            there = starts.get(math.prod(before[:at]))
            if there is not None and after[there] == dim > 1:
                found[there] = axis
    return tuple(found)


PATCH_FOLDING = RewritePass("patch-folding", (patches_of_pad,))
