"""Pooling of images, channels last."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import expand, require_float, splat
from gptrs.functionals.windows import (
    AxisWindows,
    Extents,
    Padding,
    Windows,
    extents,
    require_fit,
    windows_of,
)
from gptrs.ir.dtypes import DType


@functional
def max_pool2d(
    x: Tensor,
    kernel: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element under each position of a window; NaN wins. As torch's `max_pool2d`.

    float x [N, H, W, C] -> [N, OH, OW, C], `OH = floor((H + top + bottom - reach) / stride) + 1`
    with `reach = (kernel - 1) * dilation + 1`. `stride` is `kernel` unless given; `kernel`,
    `stride` and `dilation` are an integer or (vertical, horizontal), `padding` is as in `conv2d`.
    With `ceil_mode` OH is rounded up, and a last window may hang over, but not start in the
    bottom padding.

    UsageError for another rank, types that are not floats, a kernel larger than the padded image,
    and padding so wide that a window meets no element.
    """
    windows = _pool_windows("max_pool2d", x, kernel, stride, padding, dilation)
    return _reduced("max", x, _standing("max_pool2d", x, windows, ceil_mode))


@functional
def average_pool2d(
    x: Tensor,
    kernel: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean under each position of a window, as torch's `avg_pool2d`.

    Zeros of the padding count as elements unless `count_include_pad` is false; what hangs over
    the padding with `ceil_mode` never counts. 8- and 16-bit floats are summed and divided in f32.
    Shapes, the other parameters and errors are those of `max_pool2d`.
    """
    windows = _pool_windows("average_pool2d", x, kernel, stride, padding, 1)
    standing = _standing("average_pool2d", x, windows, ceil_mode)
    sums = _reduced("sum", x, standing, x.dtype.accumulator)
    highs = [axis.high if count_include_pad else 0 for axis in windows]
    counts = [
        _counts(axis, -axis.low if count_include_pad else 0, axis.dim + high)
        for axis, high in zip(standing, highs, strict=True)
    ]
    return _mean(sums, counts, x.dtype)


@functional
def adaptive_average_pool2d(x: Tensor, output_size: Extents) -> Tensor:
    """The means of a grid of `output_size` bins, as torch's `adaptive_avg_pool2d`.

    float x [N, H, W, C] -> [N, OH, OW, C] with `output_size` an integer or (OH, OW). Bin i of OH
    holds the rows from `floor(i * H / OH)` to before `ceil((i + 1) * H / OH)`: bins may overlap,
    and OH may exceed H. 8- and 16-bit floats are summed and divided in f32.

    UsageError for another rank, types that are not floats, sizes below 1, and an empty image.
    """
    sizes = _bin_counts("adaptive_average_pool2d", x, output_size)
    if sizes == (1, 1):
        return global_average_pool(x, keepdims=True)
    kernel = _equal_bins(x, sizes)
    if kernel is not None:
        return average_pool2d(x, kernel)
    wide = x.dtype.accumulator
    sums = x if wide is x.dtype else primitives.cast(x, wide)
    for axis, size in zip((1, 2), sizes, strict=True):
        sums = _binned("sum", sums, axis, size)
    spans = [_spans(dim, size) for dim, size in zip(x.shape[1:3], sizes, strict=True)]
    return _mean(sums, [stops - starts for starts, stops in spans], x.dtype)


@functional
def adaptive_max_pool2d(x: Tensor, output_size: Extents) -> Tensor:
    """The largest elements of a grid of `output_size` bins; NaN wins.

    As torch's `adaptive_max_pool2d`. Shapes, bins and errors are those of
    `adaptive_average_pool2d`.
    """
    sizes = _bin_counts("adaptive_max_pool2d", x, output_size)
    if sizes == (1, 1):
        return primitives.reduce(x, "max", [1, 2], keepdims=True)
    kernel = _equal_bins(x, sizes)
    if kernel is not None:
        return max_pool2d(x, kernel)
    for axis, size in zip((1, 2), sizes, strict=True):
        x = _binned("max", x, axis, size)
    return x


@functional
def global_average_pool(x: Tensor, keepdims: bool = False) -> Tensor:
    """The mean over all spatial axes (Lin et al. 2013).

    float x [N, spatial.., C] -> [N, C], or [N, 1.., C] with `keepdims`. 8- and 16-bit floats are
    summed and divided in f32. UsageError for fewer than 3 axes, empty spatial axes, and types that
    are not floats.
    """
    require_float("global_average_pool", x=x)
    count = math.prod(x.shape[1:-1])
    if x.rank < 3 or count == 0:
        raise UsageError(
            "`global_average_pool` needs `x` [N, spatial.., C] with elements on the spatial axes,"
            f" got `{x.type}`"
        )
    wide = x.dtype.accumulator
    sums = primitives.reduce(
        x, "sum", range(1, x.rank - 1), keepdims, out_dtype=_unless(x.dtype, wide)
    )
    return _narrowed(primitives.div(sums, splat(count, wide, sums.shape)), x.dtype)


def _require_images(name: str, x: Tensor) -> None:
    require_float(name, x=x)
    if x.rank != 4:
        raise UsageError(f"`{name}` needs `x` of rank 4 [N, H, W, C], got `{x.type}`")


def _pool_windows(
    name: str,
    x: Tensor,
    kernel: Extents,
    stride: Extents | None,
    padding: Padding,
    dilation: Extents,
) -> Windows:
    _require_images(name, x)
    return windows_of(name, x, kernel, kernel if stride is None else stride, padding, dilation)


def _standing(name: str, x: Tensor, windows: Windows, ceil_mode: bool) -> Windows:
    """Return the windows, with those of `ceil_mode`; UsageError unless all meet elements of `x`."""
    standing = tuple(_ceiled(axis) for axis in windows) if ceil_mode else windows
    require_fit(name, x, standing)
    for number, (axis, given) in enumerate(zip(standing, windows, strict=True), start=1):
        if axis.misses():
            raise UsageError(
                f"`{name}` with padding ({given.low}, {given.high}) on axis {number} of `{x.type}`"
                f" has a window over {axis.reach} elements that holds nothing but padding"
            )
    return standing


def _ceiled(axis: AxisWindows) -> AxisWindows:
    """Return the window with padding above for a position that is partly outside the axis."""
    room = axis.low + axis.dim + axis.high - axis.reach
    positions = -(-room // axis.stride) + 1
    if (positions - 1) * axis.stride >= axis.low + axis.dim:
        positions -= 1
    if positions < 1:
        return axis
    high = (positions - 1) * axis.stride + axis.reach - axis.low - axis.dim
    return dataclasses.replace(axis, high=max(axis.high, high))


def _reduced(
    kind: Literal["max", "sum"], x: Tensor, windows: Windows, out_dtype: DType | None = None
) -> Tensor:
    return primitives.reduce_window(
        x,
        kind,
        (1, *(axis.size for axis in windows), 1),
        (1, *(axis.stride for axis in windows), 1),
        [(0, 0), *((axis.low, axis.high) for axis in windows), (0, 0)],
        (1, *(axis.dilation for axis in windows), 1),
        out_dtype=out_dtype and _unless(x.dtype, out_dtype),
    )


def _unless(dtype: DType, wide: DType) -> DType | None:
    """`wide` as an attribute: None where it is the default."""
    return None if wide is dtype else wide


def _narrowed(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else primitives.cast(x, dtype)


def _counts(axis: AxisWindows, first: int, end: int) -> np.ndarray:
    """Return how many of the elements [first, end) each window holds, at dilation 1."""
    starts = np.array(axis.starts)
    return np.minimum(starts + axis.size, end) - np.maximum(starts, first)


def _mean(sums: Tensor, counts: list[np.ndarray], dtype: DType) -> Tensor:
    """`sums` [N, OH, OW, C] divided by the sizes of the windows, given for each axis."""
    rows, columns = counts
    if len({*rows}) == len({*columns}) == 1:
        sizes = splat(int(rows[0] * columns[0]), sums.dtype)
    else:
        shape = (len(rows), len(columns), 1)
        high = primitives.constant(rows.reshape(-1, 1, 1), sums.dtype)
        wide = primitives.constant(columns.reshape(-1, 1), sums.dtype)
        sizes = primitives.mul(expand(high, shape), expand(wide, shape))
    return _narrowed(primitives.div(sums, expand(sizes, sums.shape)), dtype)


def _bin_counts(name: str, x: Tensor, output_size: Extents) -> tuple[int, ...]:
    _require_images(name, x)
    if 0 in x.shape[1:3]:
        raise UsageError(f"`{name}` needs an image with elements, got `{x.type}`")
    return extents(name, "output_size", output_size, 2)


def _equal_bins(x: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the size of the bins if all are alike and disjoint, else None."""
    pairs = list(zip(x.shape[1:3], sizes, strict=True))
    return None if any(dim % size for dim, size in pairs) else tuple(d // s for d, s in pairs)


def _spans(dim: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each bin."""
    bins = np.arange(count)
    return bins * dim // count, -(-(bins + 1) * dim // count)


def _binned(kind: Literal["max", "sum"], x: Tensor, axis: int, count: int) -> Tensor:
    """`axis` of `x` combined over `count` bins: a lookup of their elements, and a reduction.

    Bins are filled up to the size of the largest by repeating their last element, and for sums
    by zeros.
    """
    starts, stops = _spans(x.shape[axis], count)
    wanted = np.add.outer(starts, np.arange(int(np.max(stops - starts))))
    to_front = (axis, *(other for other in range(x.rank) if other != axis))
    indices = np.minimum(wanted, stops[:, np.newaxis] - 1)
    rows = primitives.take(primitives.transpose(x, to_front), primitives.constant(indices))
    if kind == "sum":
        inside = wanted < stops[:, np.newaxis]
        inside = primitives.constant(inside.reshape(*inside.shape, *(1,) * (x.rank - 1)))
        zeros = splat(0, rows.dtype, rows.shape)
        rows = primitives.select(expand(inside, rows.shape), rows, zeros)
    combined = primitives.reduce(rows, kind, [1])
    return primitives.transpose(combined, [to_front.index(other) for other in range(x.rank)])
