"""Slices and padding, with bounds that the graph knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, is_number, numbers, scalar

_MODES: dict[str, Literal["constant", "edge", "reflect"]] = {
    "constant": "constant",
    "edge": "edge",
    "reflect": "reflect",
}


@converts("Slice", known=[1, 2, 3, 4])
def slice_(node: Node, x: Tensor, *bounds: Known | None) -> Tensor:
    """Return every `steps`-th element from `starts` to `ends` along `axes`."""
    given = [None if each is None else numbers(each) for each in bounds] + [None] * 4
    if node.version < 10:
        given = [node.integers("starts"), node.integers("ends"), None, None]
        given[2] = node.integers("axes") if "axes" in node else None
    starts, ends, axes, steps = given[:4]
    if starts is None or ends is None:
        node.malformed("lacks its bounds")
    cut: dict[int, tuple[int, int, int]] = {}
    turned: list[int] = []
    for i, axis in enumerate(axes or range(len(starts))):
        place, step, size = axis % x.rank, steps[i] if steps else 1, x.shape[axis]
        begin, end = _counted(starts[i], size), _counted(ends[i], size)
        if step < 0:  # read from the other end
            begin, end, step = size - 1 - min(begin, size - 1), size - 1 - max(end, -1), -step
            turned.append(place)
        cut[place] = (begin, _reached(end, size), step)
    return _sliced(F.flip(x, turned) if turned else x, cut)


def _counted(bound: int, size: int) -> int:
    """Return a bound counted from the start; -1 or less is before it."""
    return bound + size if is_number(bound) and bound < 0 else bound


def _reached(end: int, size: int) -> int:
    """Return an end that is in the axis, or at its own."""
    beyond = is_number(end) and end >= 2**31 - 1
    return size if beyond else min(end, size)


def _sliced(x: Tensor, cut: Mapping[int, tuple[int, int, int]]) -> Tensor:
    """Return x cut along axes to (begin, end, step), where sizes may be symbolic."""
    starts, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    for axis, (begin, end, step) in cut.items():
        first = begin if is_number(begin, 0) else max(min(begin, x.shape[axis]), 0)
        length = end - first
        count = length if step == 1 else (length + step - 1) // step
        sizes[axis], strides[axis] = max(count, 0), step
        starts[axis] = first if count > 0 else 0
    return primitives.slice(x, starts, sizes, strides)


@converts("Pad", known=[1, 3])
def pad(
    node: Node,
    x: Tensor,
    pads: Known | None = None,
    value: Tensor | None = None,
    axes: Known | None = None,
) -> Tensor:
    """Return x with elements before and after: a constant, the edge, a mirror image, or itself."""
    widths = numbers(pads) if pads is not None else node.integers("pads")
    places = [axis % x.rank for axis in numbers(axes)] if axes is not None else list(range(x.rank))
    if value is None:
        value = scalar(node.number("value", 0.0) if node.version < 11 else 0, x.dtype)
    mode = node.text("mode", "constant")
    low, high = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(places):
        low[axis], high[axis] = widths[i], widths[i + len(places)]
    x = _cut(x, low, high)
    sides = [(max(before, 0), max(after, 0)) for before, after in zip(low, high, strict=True)]
    if mode == "wrap":
        return _wrapped(x, sides)
    if mode == "constant":
        return _filled(x, sides, value)
    if mode not in _MODES:
        node.refuse(f"has the mode {mode!a}")
    return F.pad(x, sides, _MODES[mode])


def _cut(x: Tensor, low: list[int], high: list[int]) -> Tensor:
    """Return x without what negative widths take away."""
    if not any(each < 0 for each in (*low, *high)):
        return x
    starts = [max(-each, 0) for each in low]
    stops = [size - max(-each, 0) for size, each in zip(x.shape, high, strict=True)]
    return F.slice(x, starts, stops)


def _filled(x: Tensor, sides: list[tuple[int, int]], value: Tensor) -> Tensor:
    """Return x among elements of a value that the program may compute."""
    for axis, (before, after) in enumerate(sides):
        for width, first in ((before, True), (after, False)):
            if is_number(width, 0):
                continue
            shape = [width if i == axis else size for i, size in enumerate(x.shape)]
            block = F.broadcast_to(F.reshape(value, [1] * x.rank), shape)
            x = F.concat([block, x] if first else [x, block], axis)
    return x


def _wrapped(x: Tensor, sides: list[tuple[int, int]]) -> Tensor:
    """Return x repeated without end, cut out where it is asked for."""
    for axis, (before, after) in enumerate(sides):
        size = x.shape[axis]
        places = (
            F.arange(before + size + after) - before + size * (1 + before // max(size, 1))
        ) % size
        x = F.take(x, places, axis) if before or after else x
    return x


@converts("CenterCropPad", known=[1])
def center_crop_pad(node: Node, x: Tensor, shape: Known) -> Tensor:
    """Return the middle of x, or x in the middle of zeros, along some axes."""
    whole, wanted = x, numbers(shape)
    axes = [axis % whole.rank for axis in node.integers("axes", list(range(whole.rank)))]
    for axis, size in zip(axes, wanted, strict=True):
        own = whole.shape[axis]
        if size < own:
            whole = F.slice_axis(whole, axis, (own - size) // 2, size)
        elif size > own:
            sides = [(0, 0)] * whole.rank
            sides[axis] = ((size - own) // 2, size - own - (size - own) // 2)
            whole = _filled(whole, sides, scalar(0, whole.dtype))
    return whole
