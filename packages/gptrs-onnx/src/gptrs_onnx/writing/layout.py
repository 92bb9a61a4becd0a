"""Writers of ops that move elements without computing on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.api.programs import TensorType
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.layout
_BEFORE_ALL: Final = -(2**63)
"""An end of a slice that runs backwards to the first element."""


@writes(ops.Reshape)
def reshape(w: GraphWriter, op: ops.Reshape, x: Ref) -> Ref:
    """Write the elements under another shape."""
    return w.reshape(x, op.infer(x.type).shape)


@writes(ops.Transpose)
def transpose(w: GraphWriter, op: ops.Transpose, x: Ref) -> Ref:
    """Write the axes in another order."""
    return w.transpose(x, op.permutation)


@writes(ops.BroadcastTo)
def broadcast_to(w: GraphWriter, op: ops.BroadcastTo, x: Ref) -> Ref:
    """Write repeated elements."""
    return w.expand(x, op.shape)


@writes(ops.Slice)
def slice_(w: GraphWriter, op: ops.Slice, x: Ref) -> Ref:
    """Write a block, in steps."""
    return sliced(w, x, op.starts, op.sizes, op.steps(x.rank))


def sliced(
    w: GraphWriter,
    x: Ref,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> Ref:
    """Return `sizes` elements from `starts` on, in steps."""
    strides = [1] * x.rank if steps is None else list(steps)
    cut = [
        axis
        for axis in range(x.rank)
        if not (starts[axis] == 0 and strides[axis] == 1 and sizes[axis] == x.shape[axis])
    ]
    if not cut:
        return x
    ends = [
        starts[axis] + (sizes[axis] - 1) * strides[axis] + 1 if sizes[axis] != 0 else starts[axis]
        for axis in cut
    ]
    bounds = [[starts[axis] for axis in cut], ends, cut, [strides[axis] for axis in cut]]
    return w.node("Slice", x, *(w.vector(each) for each in bounds), shape=sizes)


@writes(ops.Concat)
def concat(w: GraphWriter, op: ops.Concat, *parts: Ref) -> Ref:
    """Write tensors one after another."""
    shape = op.infer(*(part.type for part in parts)).shape
    return w.node("Concat", *parts, shape=shape, axis=op.axis)


@writes(ops.Pad)
def pad(w: GraphWriter, op: ops.Pad, x: Ref) -> Ref:
    """Write values between the elements and around them, or elements trimmed from the ends."""
    value = None if op.value is None else w.constant(op.value.array)
    for axis, between in enumerate(op.between(x.rank)):
        if between and x.shape[axis] not in (0, 1):
            x = _spread(w, x, axis, between, value)
    return padded(w, x, list(zip(op.low, op.high, strict=True)), value)


def padded(
    w: GraphWriter, x: Ref, sides: Sequence[tuple[int, int]], value: Ref | None = None
) -> Ref:
    """Return `x` with `value`, or zeros, before and after; negative widths take elements away."""
    starts, sizes = [0] * x.rank, list(x.shape)
    widths: list[tuple[int, int]] = []
    for axis, (low, high) in enumerate(sides):
        size = x.shape[axis]
        if low >= 0 and high >= 0:
            widths.append((low, high))
            continue
        total = low + size + high
        first = min(max(-low, 0), size)
        last = max(size + min(high, 0), first)
        starts[axis], sizes[axis] = first, last - first
        before = min(max(low, 0), total)
        widths.append((before, total - before - sizes[axis]))
    kept = sliced(w, x, starts, sizes)
    return _surrounded(w, kept, widths, value)


def _surrounded(
    w: GraphWriter, x: Ref, widths: Sequence[tuple[int, int]], value: Ref | None
) -> Ref:
    """Return `x` with values around it."""
    axes = [axis for axis, (low, high) in enumerate(widths) if low or high]
    if not axes:
        return x
    shape = [low + size + high for size, (low, high) in zip(x.shape, widths, strict=True)]
    pads = [widths[axis][side] for side in (0, 1) for axis in axes]
    filler = value if value is not None else w.scalar(0, x.dtype)
    return w.node("Pad", x, w.vector(pads), filler, w.vector(axes), shape=shape)


def _spread(w: GraphWriter, x: Ref, axis: int, between: int, value: Ref | None) -> Ref:
    """Return `x` with values between neighbours: a row of values after each, but for the last."""
    size, (before, after) = x.shape[axis], (x.shape[:axis], x.shape[axis + 1 :])
    rows = w.reshape(x, (*before, size, 1, *after))
    sides = [(0, between if place == axis + 1 else 0) for place in range(rows.rank)]
    rows = _surrounded(w, rows, sides, value)
    merged = w.reshape(rows, (*before, size * (between + 1), *after))
    return sliced(w, merged, [0] * x.rank, (*before, size * (between + 1) - between, *after))


@writes(ops.Tile)
def tile(w: GraphWriter, op: ops.Tile, x: Ref) -> Ref:
    """Write a tensor side by side with itself."""
    type_ = op.infer(x.type)
    return w.node("Tile", x, w.vector(op.repeats), type=type_) if op.repeats else x


@writes(ops.Reverse)
def reverse(w: GraphWriter, op: ops.Reverse, x: Ref) -> Ref:
    """Write the elements in reverse order along axes."""
    return reversed_along(w, x, op.axes)


def reversed_along(w: GraphWriter, x: Ref, axes: Sequence[int]) -> Ref:
    """Return the elements in reverse order along axes."""
    if not axes:
        return x
    count = len(axes)
    bounds = ([-1] * count, [_BEFORE_ALL] * count, list(axes), [-1] * count)
    return w.node(
        "Slice", x, *(w.vector(each) for each in bounds), type=TensorType(x.dtype, x.shape)
    )
