"""Reading and writing at indices that tensors hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from gptrs.api.importers import is_number, scalar, within_axis
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Known, Node, Sizes, as_tensor, constant, converts, sizes

ScatterKind = Literal["add", "mul", "max", "min", "replace"]
_KINDS: dict[str, ScatterKind] = {
    "none": "replace", "add": "add", "mul": "mul", "max": "max", "min": "min",
}  # fmt: skip


def counted_from_start(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the start; negative ones count from the end.

    One before the start stays as it is, so that the error of the program names it.
    """
    whole = F.cast(indices, dtypes.si64)
    moved = whole + as_tensor(sizes([size]).reshape(()))
    return F.where(F.logical_and(whole < 0, moved >= 0), moved, whole)


@converts("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Return the slices of x at `indices` along an axis; their dims replace that axis."""
    axis %= x.rank
    return F.take(x, counted_from_start(indices, x.shape[axis]), axis)


@converts("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Return the elements of x at `indices` along an axis, one each."""
    axis %= x.rank
    return F.gather(x, counted_from_start(indices, x.shape[axis]), axis)


@converts("Scatter", "ScatterElements")
def scatter_elements(
    node: Node,
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Tensor:
    """Return x with updates written, or reduced, at indices along an axis."""
    axis %= x.rank
    places = counted_from_start(indices, x.shape[axis])
    return F.scatter(x, places, updates, axis, _kind(node, reduction))


def _kind(node: Node, reduction: str) -> ScatterKind:
    return _KINDS.get(reduction) or node.refuse(f"has the reduction {reduction!a}")


@converts("GatherND", "com.microsoft.GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Return slices of x at indices of several axes, after shared batch axes."""
    batch = batch_dims
    depth = indices.shape[-1]
    lead = x.shape[:batch]
    flat_x = F.reshape(x, [math.prod(lead), *x.shape[batch:]])
    places = indices.shape[batch:-1]
    flat = F.reshape(indices, [math.prod(lead), math.prod(places), depth])
    rows = _flat_indices(flat, flat_x.shape[1 : 1 + depth], batch)
    if batch:
        inside = math.prod(flat_x.shape[1 : 1 + depth])
        rows = rows + F.expand_dims(
            F.arange(flat_x.shape[0]) * as_tensor(sizes([inside]).reshape(())), 1
        )
    rest = flat_x.shape[1 + depth :]
    table = F.reshape(flat_x, [math.prod(flat_x.shape[: 1 + depth]), *rest])
    found = F.take(table, F.reshape(rows, [math.prod(rows.shape)]), 0)
    return F.reshape(found, [*lead, *places, *rest])


def _flat_indices(indices: Tensor, shape: tuple[int, ...], batch: int = 0) -> Tensor:
    """Return indices of axes after `batch`, the last axis of `indices`, as row-major numbers."""
    total: Tensor | None = None
    for axis, size in enumerate(shape):
        column = F.squeeze(F.slice_axis(indices, -1 % indices.rank, axis, 1), -1)
        place = counted_from_start(column, size)
        if len(shape) > 1 or batch:  # otherwise the table itself is the axis
            place = within_axis(place, batch + axis, size)
        total = place if total is None else total * as_tensor(sizes([size]).reshape(())) + place
    if total is None:
        return F.zeros(indices.shape[:-1], dtypes.si64)
    return total


@converts("ScatterND")
def scatter_nd(
    node: Node, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """Return x with slices written, or reduced, at indices of several axes."""
    depth = indices.shape[-1]
    rest = x.shape[depth:]
    count, width = math.prod(indices.shape[:-1]), math.prod(rest)
    rows = _flat_indices(F.reshape(indices, [count, depth]), x.shape[:depth])
    table = F.reshape(x, [math.prod(x.shape[:depth]), width])
    places = F.broadcast_to(F.expand_dims(rows, 1), [count, width])
    kind = _kind(node, reduction)
    written = F.scatter(table, places, F.reshape(updates, [count, width]), 0, kind)
    return F.reshape(written, x.shape)


@converts("TensorScatter")
def tensor_scatter(
    cache: Tensor,
    update: Tensor,
    starts: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Return a cache with new positions written from `starts` on, one for each of the batch."""
    axis %= cache.rank
    count, size = update.shape[axis], cache.shape[axis]
    steps = F.reshape(F.arange(count), [-1 if i == axis else 1 for i in range(cache.rank)])
    if starts is not None:
        steps = steps + F.reshape(F.cast(starts, dtypes.si64), [-1, *[1] * (cache.rank - 1)])
    if mode == "circular":
        steps = F.remainder(steps, size)
    return F.scatter(cache, F.broadcast_to(steps, update.shape), update, axis)


@converts("Compress")
def compress(x: Tensor, condition: Known, *, axis: int | None = None) -> Tensor:
    """Return the slices of x where a known condition holds."""
    if axis is None:
        x, axis = F.reshape(x, [math.prod(x.shape)]), 0
    return F.take(x, primitives.constant(condition.nonzero()[0]), axis % x.rank)


@converts("NonZero")
def non_zero(x: Known) -> Tensor:
    """Return the indices of known elements that are not 0 [rank, count]."""
    found = np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(x != 0)))
    return primitives.constant(found.astype(np.int64))


@converts("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    """Return columns of x."""
    found = F.take(x, F.reshape(indices, [math.prod(indices.shape)]), x.rank - 1)
    return F.expand_dims(found, 0) if x.rank == 1 else found


# Orders of elements.


@converts("TopK")
def top_k(
    node: Node, x: Tensor, count: Sizes | None = None, *, axis: int = -1, largest: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the largest, or smallest, elements along an axis in order, and their indices."""
    most = node.integer("k") if count is None else count[0]
    values, places = F.top_k(x, most, axis, largest=largest)
    return values, F.cast(places, dtypes.si64)


@converts("Unique")
def unique(
    x: Known, *, axis: int | None = None, sorted: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the distinct elements, or slices, of known data: first indices, numbers, counts."""
    if sorted:
        found = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
        values, first, inverse, counts = found
    else:
        values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        # NumPy sorts the values; ONNX wants them in the order in which they first occur.
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse.reshape(-1)]
    where, numbers_, times = (
        constant(np.asarray(each, np.int64).reshape(-1)) for each in (first, inverse, counts)
    )
    return constant(values), where, numbers_, times


# Slices and padding, with bounds that the graph knows.


@converts("Slice")
def slice_(node: Node, x: Tensor, *bounds: Sizes | None) -> Tensor:
    """Return every `steps`-th element from `starts` to `ends` along `axes`."""
    given = [*bounds, *[None] * 4]
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


_FAR: Final = 2**62


def _counted(bound: int, size: int) -> int:
    """Return a bound counted from the start; -1 or less is before it."""
    if not is_number(bound):
        return bound
    # Exporters write the limits of 64 bits, to which no size can be added.
    bound = min(max(bound, -_FAR), _FAR)
    return bound + size if bound < 0 else bound


def _reached(end: int, size: int) -> int:
    """Return an end that is in the axis, or at its own."""
    # Exporters write the largest integer of 32 or 64 bits for "to the end".
    beyond = is_number(end) and end >= 2**31 - 1
    return size if beyond else min(end, size)


def _sliced(x: Tensor, cut: Mapping[int, tuple[int, int, int]]) -> Tensor:
    """Return x cut along axes to (begin, end, step), where sizes may be symbolic."""
    starts, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    for axis, (begin, end, step) in cut.items():
        first = begin if is_number(begin, 0) else max(min(begin, x.shape[axis]), 0)
        length = end - first
        # No division for the usual step: a symbolic quotient is an atom that fewer facts can be
        # learnt about.
        count = length if step == 1 else (length + step - 1) // step
        sizes[axis], strides[axis] = max(count, 0), step
        starts[axis] = first if count > 0 else 0
    return primitives.slice(x, starts, sizes, strides)


@converts("Pad", "com.microsoft.Pad")
def pad(
    node: Node,
    x: Tensor,
    pads: Sizes | None = None,
    value: Tensor | None = None,
    axes: Sizes | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """Return x with elements before and after: a constant, the edge, a mirror image, or itself."""
    widths = node.integers("pads") if pads is None else pads
    places = [axis % x.rank for axis in (range(x.rank) if axes is None else axes)]
    if value is None:
        value = scalar(node.number("value", 0.0) if node.version < 11 else 0, x.dtype)
    low, high = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(places):
        low[axis], high[axis] = widths[i], widths[i + len(places)]
    x = _cut(x, low, high)
    sides = [(max(before, 0), max(after, 0)) for before, after in zip(low, high, strict=True)]
    if mode == "wrap":
        return _wrapped(x, sides)
    if mode == "constant":
        return _filled(x, sides, value)
    if mode not in ("edge", "reflect"):
        node.refuse(f"has the mode {mode!a}")
    return F.pad(x, sides, mode)


def _cut(x: Tensor, low: list[int], high: list[int]) -> Tensor:
    """Return x without the elements that negative widths remove."""
    if not any(each < 0 for each in (*low, *high)):
        return x
    starts = [max(-each, 0) for each in low]
    stops = [size - max(-each, 0) for size, each in zip(x.shape, high, strict=True)]
    return F.slice(x, starts, stops)


def _filled(x: Tensor, sides: list[tuple[int, int]], value: Tensor) -> Tensor:
    """Return x padded with a value that the program may compute."""
    for axis, (before, after) in enumerate(sides):
        for width, first in ((before, True), (after, False)):
            if is_number(width, 0):
                continue
            shape = [width if i == axis else size for i, size in enumerate(x.shape)]
            block = F.broadcast_to(F.reshape(value, [1] * x.rank), shape)
            x = F.concat([block, x] if first else [x, block], axis)
    return x


def _wrapped(x: Tensor, sides: list[tuple[int, int]]) -> Tensor:
    """Return x repeated endlessly, cut to the requested place."""
    for axis, (before, after) in enumerate(sides):
        size = x.shape[axis]
        places = (
            F.arange(before + size + after) - before + size * (1 + before // max(size, 1))
        ) % size
        x = F.take(x, places, axis) if before or after else x
    return x


@converts("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Sizes, *, axes: list[int] | None = None) -> Tensor:
    """Return the middle of x, or x in the middle of zeros, along some axes."""
    for axis, size in zip(range(x.rank) if axes is None else axes, shape, strict=True):
        axis, own = axis % x.rank, x.shape[axis]
        if size < own:
            x = F.slice_axis(x, axis, (own - size) // 2, size)
        elif size > own:
            sides = [(0, 0)] * x.rank
            sides[axis] = ((size - own) // 2, size - own - (size - own) // 2)
            x = _filled(x, sides, scalar(0, x.dtype))
    return x
