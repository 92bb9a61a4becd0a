"""Slices and padding, with bounds that the graph knows."""

from __future__ import annotations

from typing import Literal

from gptrs.api import Tensor
from gptrs.api import functionals as F
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
    count = len(starts)
    key: list[tuple[int | None, int | None, int]] = [(0, size, 1) for size in x.shape]
    for i, axis in enumerate(axes or range(count)):
        key[axis] = _bounds(x.shape[axis], starts[i], ends[i], steps[i] if steps else 1)
    return F.slice(x, *zip(*key, strict=True)) if x.rank else x


def _bounds(size: int, start: int, end: int, step: int) -> tuple[int | None, int | None, int]:
    """Return bounds as those of a Python slice: beyond the ends is at them."""
    if step < 0 and is_number(end) and is_number(size):
        last = end if end >= 0 else end + size
        return (min(start, size - 1) if start >= 0 else start), (None if last < 0 else end), step
    if is_number(end) and end >= 2**31 - 1:
        return start, None, step
    return start, end, step


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
    if not any(is_number(each) and each < 0 for each in (*low, *high)):
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
