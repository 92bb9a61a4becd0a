"""Resizing of images, and sampling from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product as combinations
from typing import Any, Final, cast

import numpy as np

from gptrs.api.importers import is_number, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Known, Node, constant, converts, numbers

_KNOWN: Final = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}


_EXACT: Final = 2**20
"""Numerators and denominators of factors whose products with sizes floats hold exactly."""


def _word(node: Node, name: str, default: str) -> Any:
    """Return an attribute with one of the values that `resize` knows, or refuse the node."""
    found = node.text(name, default)
    return found if found in _KNOWN[name] else node.refuse(f"has the `{name}` {found[:40]!a}")


@converts("Upsample")
def upsample(node: Node, x: Tensor, scales: Known | None = None) -> Tensor:
    """Return x enlarged, with the coordinates of before opset 10."""
    given = node.numbers("scales") if scales is None else [float(each) for each in scales]
    sizes = [_scaled(size, scale) for size, scale in zip(x.shape, given, strict=True)]
    mode = _word(node, "mode", "nearest")
    for old, new in zip(x.shape, sizes, strict=True):
        node.require_bounded(new + 1, 1 if mode == "nearest" else old)
    return F.resize(x, sizes, range(x.rank), mode, "asymmetric", "floor", given, precision="f32")


@converts("Resize")
def resize(
    node: Node,
    x: Tensor,
    roi: Known | None = None,
    scales: Known | None = None,
    sizes: Known | None = None,
) -> Tensor:
    """Return x with axes of other sizes: nearest, linear or cubic, with ONNX's coordinate modes."""
    newer = node.version >= 11
    if not newer:  # there was no region, and the scales came second
        roi, scales, sizes = None, roi, None
    axes = [axis % x.rank for axis in node.integers("axes", list(range(x.rank)))]
    factors, wanted = _targets(node, [x.shape[axis] for axis in axes], scales, sizes)
    mode = _word(node, "mode", "nearest")
    usual = "half_pixel" if newer else "asymmetric"
    coordinates = _word(node, "coordinate_transformation_mode", usual)
    moved: list[int] = []
    for i, axis in enumerate(axes):
        if coordinates == "tf_crop_and_resize" or wanted[i] != x.shape[axis] or factors[i] != 1.0:
            moved.append(i)
            node.require_bounded(wanted[i] + 1, 1 if mode == "nearest" else x.shape[axis])
    if coordinates != "tf_crop_and_resize" and wanted == [x.shape[axis] for axis in axes]:
        return x  # whatever the scales are, as in ONNX Runtime
    region = _region(roi, len(axes))
    # Integers are weighed as floats, and cut off: in f64 if f32 does not hold all of them.
    plain, wide = x.dtype, dtypes.f64 if x.dtype.bits > 16 else dtypes.f32
    as_floats = mode != "nearest" and not plain.is_float

    rounding = _word(node, "nearest_mode", "round_prefer_floor")

    def resized(x: Tensor, chosen: Sequence[int], rounding: str = rounding) -> Tensor:
        return F.resize(
            x,
            [wanted[i] for i in chosen],
            [axes[i] for i in chosen],
            mode,
            coordinates,
            cast("Any", rounding),
            [factors[i] for i in chosen],
            node.flag("antialias"),
            node.flag("exclude_outside"),
            node.number("cubic_coeff_a", -0.75),
            [region[i] for i in chosen],
            node.number("extrapolation_value", 0.0),
            "f64" if node.flag("antialias") else "f32",
        )

    if mode == "nearest" and not newer:  # an axis that shrinks rounds up, as in ONNX Runtime
        smaller = [i for i in moved if (factors[i] or wanted[i] / x.shape[axes[i]]) < 1]
        larger = [i for i in moved if i not in smaller]
        return resized(resized(x, smaller, "ceil"), larger, "floor")
    if not as_floats:
        return resized(x, moved)
    if node.flag("antialias") and plain == dtypes.ui8:
        return _resized_bytes(resized, x, moved)
    return F.cast(F.trunc(resized(F.cast(x, wide), moved)), plain)


def _resized_bytes(
    resized: Callable[[Tensor, Sequence[int]], Tensor], x: Tensor, chosen: Sequence[int]
) -> Tensor:
    """Return bytes rounded after each axis, columns first, as ONNX Runtime does."""
    for i in reversed(chosen):
        made = F.floor(resized(F.cast(x, dtypes.f64), [i]) + 0.5)
        x = F.cast(F.clamp(made, 0.0, 255.0), x.dtype)
    return x


def _region(roi: Known | None, count: int) -> list[tuple[float, float]]:
    """Return the share of each of `count` axes that is read: all of it, unless `roi` says so."""
    if roi is None or roi.size != 2 * count:
        return [(0.0, 1.0)] * count
    return [(float(roi[i]), float(roi[i + count])) for i in range(count)]


def _targets(
    node: Node, old: Sequence[int], scales: Known | None, sizes: Known | None
) -> tuple[list[float | None], list[int]]:
    """Return the factor and the size of each axis; None is the quotient of sizes that are free."""
    if scales is not None and scales.size:
        factors = [float(each) for each in scales]
        return list(factors), [_scaled(*pair) for pair in zip(old, factors, strict=True)]
    if sizes is None or not sizes.size:
        node.malformed("has neither sizes nor scales")
    wanted = numbers(sizes)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    pairs = zip(wanted, old, strict=True)
    if policy == "stretch":
        return [_factor(*pair) for pair in pairs], wanted
    known = [np.float32(int(new)) / np.float32(int(size)) for new, size in pairs]
    one = min(known) if policy == "not_larger" else max(known)
    # Halves round up here, as the standard says for this policy, not to even.
    sizes_ = [int(np.floor(float(np.float32(int(size)) * one) + 0.5)) for size in old]
    return [float(one)] * len(known), sizes_


def _factor(new: int, size: int) -> float | None:
    if new == size:
        return 1.0
    return float(np.float32(new) / np.float32(size)) if is_number(new) and is_number(size) else None


def _scaled(size: int, scale: float) -> int:
    """Return `size * scale` rounded down, as a formula of a free size where floats are exact."""
    if scale == 1:
        return size
    part = Fraction(scale)
    # The nearest float of 1/3 is another fraction with a huge denominator: as a formula it would
    # round down where the float product rounds up.
    if is_number(size) or part.denominator > _EXACT or part.numerator > _EXACT:
        return int(np.floor(np.float32(int(size)) * np.float32(scale)))  # as shape inference
    return size * part.numerator // part.denominator


# Values of images at positions that tensors name.


_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_CUBIC = -0.75


@converts("GridSample", "com.microsoft.GridSample")
def grid_sample(
    node: Node,
    x: Tensor,
    grid: Tensor,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Return x [N, C, spatial..] at positions in [-1, 1] (Jaderberg et al. 2015)."""
    mode, padding, corners = _MODES.get(mode, mode), padding_mode, align_corners
    if mode not in _KNOWN["mode"] or padding not in ("zeros", "border", "reflection"):
        node.refuse(f"has the mode {mode[:40]!a} or padding {padding[:40]!a}")
    spatial = x.shape[2:]
    # Positions of no number, and infinite ones, are the first in ONNX Runtime.
    grid = F.where(F.abs(grid) < float("inf"), grid, -1.0)
    count = len(spatial)
    if mode == "cubic" and count != 2:
        node.malformed("is cubic for a number of axes other than two")
    positions: list[Tensor] = []
    for axis, size in enumerate(spatial):
        unit = F.squeeze(F.slice_axis(grid, grid.rank - 1, count - 1 - axis, 1), -1)
        whole = _extent(size, x.dtype)
        position = (
            (unit + 1.0) * ((whole - 1.0) / 2.0) if corners else ((unit + 1.0) * whole - 1.0) / 2.0
        )
        if mode == "nearest":  # before it is mirrored: at ties that is another element
            position = F.round(position)
        if mode != "cubic" and padding != "zeros":
            position = _inside(position, size, padding, corners)
        positions.append(position)
    taps = [taps_of(position, mode) for position in positions]
    total: Tensor | None = None
    for choice in combinations(*taps):
        value = read_places(x, [tap for tap, _ in choice], padding, corners)
        for _, weight in choice:
            if weight is not None:
                value = value * F.expand_dims(weight, 1)
        total = value if total is None else total + value
    assert total is not None
    return total


def taps_of(position: Tensor, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return the elements that a position reads along an axis, and their weights."""
    if mode == "nearest":
        return [(F.round(position), None)]
    first = F.floor(position)
    rest = position - first
    if mode == "linear":
        return [(first, 1.0 - rest), (first + 1.0, rest)]
    a = _CUBIC
    weights: list[Tensor] = []
    # Keys' kernel: two pieces, for taps nearer than one element and for those farther away.
    for offset in (-1, 0, 1, 2):
        far = F.abs(rest - float(offset))
        if offset in (0, 1):
            weights.append(((a + 2) * far - (a + 3)) * far * far + 1.0)
        else:
            weights.append(((a * far - 5 * a) * far + 8 * a) * far - 4 * a)
    return [(first + float(o), w) for o, w in zip((-1, 0, 1, 2), weights, strict=True)]


def _extent(size: int, dtype: DType) -> Tensor | float:
    """Return a size for arithmetic with floats; a free one is computed by the program."""
    return float(size) if is_number(size) else size_tensor(size, dtype)


def _clamped(position: Tensor, size: int) -> Tensor:
    return F.clamp(position, 0.0, _extent(size - 1, position.dtype))


def _inside(position: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """Return positions moved into the image: clamped to its border, or mirrored at it."""
    if padding == "border":
        return _clamped(position, size)
    # Mirrored at the centre of the border elements, or at their outer edges.
    low, whole = (0.0, size - 1) if corners else (-0.5, size)
    if not whole > 0:
        return position * 0.0
    span = _extent(whole, position.dtype)
    away = F.abs(position - low)
    turns = F.floor(away / span)
    rest = away - turns * span
    odd = F.equal(turns - 2.0 * F.floor(turns / 2.0), 1.0)
    mirrored = F.where(odd, span - rest, rest) + low
    return _clamped(mirrored, size)


def read_places(x: Tensor, taps: list[Tensor], padding: str, corners: bool) -> Tensor:
    """Return x [N, C, spatial..] at whole positions [N, out..], 0 outside if padding is zeros."""
    spatial = x.shape[2:]
    batch, channels = x.shape[:2]
    flat: Tensor | None = None
    inside: Tensor | None = None
    for tap, size in zip(taps, spatial, strict=True):
        if padding == "zeros":
            within = F.logical_and(tap >= 0.0, tap <= _extent(size - 1, tap.dtype))
            inside = within if inside is None else F.logical_and(inside, within)
            # Clamped before the gather, which has no bounds of its own; the zero is selected
            # afterwards.
            tap = _clamped(tap, size)
        else:
            tap = _inside(tap, size, padding, corners)
        whole = F.cast(tap, dtypes.si64)
        flat = whole if flat is None else flat * size_tensor(size) + whole
    assert flat is not None
    count = math.prod(spatial)
    out = flat.shape[1:]
    rows = F.reshape(flat, [batch, 1, math.prod(out)])
    where = F.broadcast_to(rows, [batch, channels, rows.shape[2]])
    values = F.reshape(
        F.gather(F.reshape(x, [batch, channels, count]), where, 2), [batch, channels, *out]
    )
    if inside is None:
        return values
    return F.where(F.expand_dims(inside, 1), values, F.zeros([], x.dtype))


@converts("RoiAlign")
def roi_align(
    node: Node,
    x: Tensor,
    rois: Tensor,
    batches: Tensor,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
) -> Tensor:
    """Return means or maxima of samples in bins of regions (He et al. 2017)."""
    height, width, ratio, scale = output_height, output_width, sampling_ratio, spatial_scale
    half = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    left, top, right, bottom = (F.squeeze(part, -1) * scale - half for part in F.split(rois, 4, -1))
    tall, wide = bottom - top, right - left
    if not half:
        tall, wide = F.maximum(tall, F.ones([], x.dtype)), F.maximum(wide, F.ones([], x.dtype))
    images = F.take(x, F.cast(batches, dtypes.si64), 0)
    keep = mode == "max"
    if ratio <= 0:
        return _sampled_by_size(images, (top, tall, height), (left, wide, width), keep)
    rows = _samples(top, tall, height, ratio)
    columns = _samples(left, wide, width, ratio)
    parts = _on_grid(images, rows, columns, keep)
    count, channels = rois.shape[0], x.shape[1]
    if keep:
        boxes = F.reshape(parts, [4, count, channels, height, ratio, width, ratio])
        return F.max(boxes, [0, 4, 6])
    boxes = F.reshape(parts, [count, channels, height, ratio, width, ratio])
    return F.mean(boxes, [3, 5])


_MOST_SAMPLES: Final = 2.0**22
"""Samples of a bin; regions with more, such as infinite ones, have the value 0."""
_Extent = tuple[Tensor, Tensor, int]
"""The starts and lengths [regions] of regions along an axis, and how many bins each has."""


def _sampled_by_size(images: Tensor, down: _Extent, across: _Extent, keep: bool) -> Tensor:
    """Return means, or maxima, of samples at most one element apart, as many as a bin takes.

    The program counts: a step adds one sample to each bin whose region has as many.
    """
    dtype = images.dtype
    # Floats of 16 bits do not count far enough.
    rows, columns = (
        F.maximum(F.ceil(F.cast(length, dtypes.f32) / bins), 0.0)
        for _, length, bins in (down, across)
    )
    counts = rows * columns
    counts = F.where(counts < _MOST_SAMPLES, counts, 0.0)
    shape = [images.shape[0], images.shape[1], down[2], across[2]]
    start = F.full(shape, -math.inf if keep else 0.0, dtype)
    most = F.max(F.concat([counts, F.zeros([1])], 0), [0])

    def goes_on(place: Tensor, _: Tensor) -> tuple[Tensor]:
        return (place < most,)

    def step(place: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        row = F.floor(place / F.maximum(columns, 1.0))
        column = place - row * columns
        grid = (_sample(row, rows, down), _sample(column, columns, across))
        value = _on_grid(images, *grid, keep)
        more = F.maximum(total, F.max(value, [0])) if keep else total + value
        counted = F.reshape(place < counts, [-1, 1, 1, 1])
        return place + 1.0, F.where(counted, more, total)

    _, total = primitives.while_(goes_on, step, F.zeros([]), start)
    divisors = F.cast(F.reshape(F.maximum(counts, 1.0), [-1, 1, 1, 1]), dtype)
    if keep:
        return F.where(F.reshape(counts > 0.0, [-1, 1, 1, 1]), total, 0.0)
    return total / divisors


def _sample(place: Tensor, count: Tensor, extent: _Extent) -> Tensor:
    """Return the positions [regions, bins] of one of `count` samples of each bin."""
    start, length, bins = extent
    inside = F.cast(F.expand_dims((place + 0.5) / F.maximum(count, 1.0), 1), start.dtype)
    bin_ = F.cast(F.arange(bins), start.dtype)
    return F.expand_dims(start, 1) + (inside + bin_) * F.expand_dims(length / bins, 1)


def _on_grid(images: Tensor, rows: Tensor, columns: Tensor, keep: bool) -> Tensor:
    """Return `_bilinear` at the crossings of rows [regions, R] and columns [regions, C]."""
    shape = [rows.shape[0], rows.shape[1], columns.shape[1]]
    down = F.broadcast_to(F.expand_dims(rows, 2), shape)
    across = F.broadcast_to(F.expand_dims(columns, 1), shape)
    return _bilinear(images, down, across, keep)


def _samples(start: Tensor, length: Tensor, bins: int, ratio: int) -> Tensor:
    """Return the positions of samples along an axis [regions, bins * ratio]."""
    offsets = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
    return F.expand_dims(start, 1) + F.expand_dims(length, 1) * F.cast(
        constant(offsets), start.dtype
    )


def _bilinear(x: Tensor, down: Tensor, across: Tensor, keep: bool) -> Tensor:
    """Return x between its elements: their weighted sum, or the four of them stacked."""
    height, width = x.shape[2:]
    outside = (down < -1.0) | (down > float(height)) | (across < -1.0) | (across > float(width))
    pairs: list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = []
    for position, size in ((down, height), (across, width)):
        position = F.maximum(position, F.zeros([], x.dtype))
        low = F.minimum(F.floor(position), F.full([], float(size - 1), x.dtype))
        position = F.where(low >= float(size - 1), low, position)
        high = F.minimum(low + 1.0, F.full([], float(size - 1), x.dtype))
        pairs.append(((low, 1.0 - (position - low)), (high, position - low)))
    values: list[Tensor] = []
    for (row, first), (column, second) in combinations(*pairs):
        weight = F.expand_dims(F.where(outside, 0.0, first * second), 1)
        values.append(read_places(x, [row, column], "border", True) * weight)
    if keep:
        return F.stack(values, 0)
    return values[0] + values[1] + values[2] + values[3]
