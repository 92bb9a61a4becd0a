"""Writers of ops that look at every position of a box that slides over a tensor."""

from __future__ import annotations

import math
from typing import Final

from gptrs.api.programs import dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.elementwise import converted
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.indexing import along, padded
from gptrs_onnx.writing.instructions import writes
from gptrs_onnx.writing.reduction import identity, reduced

ops = op_modules.window
_IMAGE: Final = 4
"""The rank of a batch of images."""


@writes(ops.ReduceWindow)
def reduce_window(w: GraphWriter, op: ops.ReduceWindow, x: Ref) -> Ref:
    """Write a reduction under a window: one axis after another, as windows are boxes.

    That of images by `max` is ONNX's `MaxPool`.
    """
    result = op.infer(x.type)
    accumulator = op.accumulator(x.type)
    total = w.cast(x, accumulator)
    if 0 in x.shape or 0 in result.shape:
        nothing = w.scalar(identity(op.kind, accumulator), accumulator)
        return converted(w, w.expand(nothing, result.shape), result.dtype)
    if _is_max_pool(op, x):
        return _max_pool(w, op, x)
    windows = op.axes()
    growth = list(map(_growth, result.shape, x.shape))
    for axis in sorted(range(x.rank), key=growth.__getitem__):
        window = windows[axis]
        if window != ops.AxisWindow(1, 1, 0, 0, 1):
            total = _reduced_along(w, op.kind, total, axis, window)
    return converted(w, total, result.dtype)


def _growth(out: int, dim: int) -> float:
    """Return by what factor an axis grows; one of a symbolic size stays as it is, or is refused."""
    if type(out) is not int or type(dim) is not int:
        return 1.0
    return math.inf if dim == 0 else out / dim


def _reduced_along(w: GraphWriter, kind: str, x: Ref, axis: int, window: ops.AxisWindow) -> Ref:
    filler = w.scalar(identity(kind, x.dtype), x.dtype)
    boxes = _windows_along(w, x, axis, window, filler)
    return reduced(w, kind, boxes, [axis + 1])


def _windows_along(
    w: GraphWriter, x: Ref, axis: int, window: ops.AxisWindow, filler: Ref | None
) -> Ref:
    """Return [.., positions, window size, ..] in the place of an axis."""
    dim = x.shape[axis]
    if type(dim) is not int:
        w.refuse("a window slides over an axis whose size is not known")
    sides = [(0, 0)] * x.rank
    sides[axis] = (window.low, window.high)
    surrounded = padded(w, x, sides, filler)
    places = [
        [start * window.stride + k * window.dilation for k in range(window.size)]
        for start in range(window.positions(dim))
    ]
    return along(w, surrounded, axis, places, window.size)


def _is_max_pool(op: ops.ReduceWindow, x: Ref) -> bool:
    """Return whether a window moves over rows and columns of images of f32 [B, H, W, C]."""
    still = ops.AxisWindow(1, 1, 0, 0, 1)
    axes = op.axes()
    ends = len(axes) == _IMAGE and axes[0] == axes[3] == still
    reaches = [(each.size - 1) * each.dilation + 1 for each in axes]
    small = all(max(each.low, each.high) < reach for each, reach in zip(axes, reaches, strict=True))
    return ends and small and op.kind == "max" and x.dtype is dtypes.f32 and op.out_dtype is None


def _max_pool(w: GraphWriter, op: ops.ReduceWindow, x: Ref) -> Ref:
    _, rows, columns, _ = op.axes()
    batch, height, width, channels = op.infer(x.type).shape
    made = w.node(
        "MaxPool",
        w.transpose(x, (0, 3, 1, 2)),
        shape=(batch, channels, height, width),
        kernel_shape=[rows.size, columns.size],
        strides=[rows.stride, columns.stride],
        dilations=[rows.dilation, columns.dilation],
        pads=[rows.low, columns.low, rows.high, columns.high],
    )
    return w.transpose(made, (0, 2, 3, 1))


@writes(ops.ExtractPatches)
def extract_patches(w: GraphWriter, op: ops.ExtractPatches, x: Ref) -> Ref:
    """Write the elements under each position side by side: looked up along each axis."""
    value = None if op.value is None else w.constant(op.value.array)
    result = op.infer(x.type)
    if 0 in x.shape or 0 in result.shape:
        return w.expand(value or w.scalar(0, x.dtype), result.shape)
    boxes = x
    for place, window in enumerate(op.axes()):
        # Each axis before this one has become two.
        boxes = _windows_along(w, boxes, 1 + 2 * place, window, value)
    count = len(op.window)
    order = [0, *range(1, 2 * count, 2), *range(2, 2 * count + 1, 2), 2 * count + 1]
    return w.reshape(w.transpose(boxes, order), result.shape)
