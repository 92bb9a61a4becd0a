"""Pooling over any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeGuard, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    REALS,
    axes_of,
    broadcast,
    converted,
    expand,
    require_dtype,
    require_float,
    size_scalar,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.symbolic_dim import SymbolicDim, symbols_of
from gptrs.ir.tensor_type import TensorType

# Windows of convolutions and pooling on the spatial axes of `[N, spatial.., C]`.


Extents = int | Sequence[int]
"""One integer for all spatial axes, or one for each."""

Padding = int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid"]
"""An integer for all sides; per spatial axis an integer or (low, high); or a name."""


class AxisWindows(Struct, frozen=True):
    """Windows on an axis: window `o` has the indices `o * stride - low + k * dilation`, 0 <= k <
    size."""

    axis: int
    dim: int
    size: int
    stride: int
    dilation: int
    low: int = 0
    high: int = 0

    @property
    def reach(self) -> int:
        """Return the extent of a window from its first to its last element."""
        return (self.size - 1) * self.dilation + 1

    @property
    def positions(self) -> int:
        """Return how many windows fit in the padded axis; below 1 if none fits."""
        return (self.low + self.dim + self.high - self.reach) // self.stride + 1

    @property
    def starts(self) -> range:
        """Return the first index of each window, negative in the padding."""
        return range(-self.low, self.positions * self.stride - self.low, self.stride)

    def misses(self) -> bool:
        """Return whether some window contains only padding."""
        # Decide without the dim if possible: a symbolic dim would need a guard.
        narrow = self.low < self.reach and self.high < self.reach
        if self.dilation == 1 and narrow and self.dim >= 1:
            return False
        # The last window begins behind the axis: all of it is padding.
        if self.starts[-1] >= self.dim:
            return True
        return any(
            start % self.dilation >= min(self.dim, start + self.reach)
            for start in self.starts[: -(-self.low // self.stride)]
        )


Windows = tuple[AxisWindows, ...]
"""One entry a spatial axis."""


def windows_of(
    name: str,
    x: Tensor | TensorType,
    kernel: Extents,
    stride: Extents,
    padding: Padding,
    dilation: Extents,
    axes: Sequence[int] | None = None,
) -> Windows:
    """Return the windows on `axes` of `x`, by default all but the first and the last.

    Padding "valid" is none. "same" gives `ceil(dim / stride)` positions, an odd element padding the
    high side (TensorFlow's and ONNX's `SAME_UPPER`; for stride 1 also torch's). UsageError for
    malformed extents or padding.
    """
    axes = range(1, x.rank - 1) if axes is None else axes
    dims = [x.shape[axis] for axis in axes]
    columns = [
        extents(name, label, value, len(dims))
        for label, value in (("kernel", kernel), ("stride", stride), ("dilation", dilation))
    ]
    bare = [AxisWindows(*entries) for entries in zip(axes, dims, *columns, strict=True)]
    sides = (
        [_same(each) for each in bare] if padding == "same" else sides_of(name, padding, len(bare))
    )
    return tuple(
        replace(each, low=low, high=high) for each, (low, high) in zip(bare, sides, strict=True)
    )


def require_fit(name: str, x: Tensor, windows: Windows) -> None:
    """UsageError unless a window fits in each padded axis of `x`."""
    for each in windows:
        if each.positions < 1:
            raise UsageError(
                f"`{name}` cannot fit a kernel over {each.reach} elements into axis {each.axis} of"
                f" `{x.type}`, which has {each.low + each.dim + each.high} with padding"
            )


def extents(name: str, label: str, value: Extents, count: int, least: int = 1) -> tuple[int, ...]:
    """Return `value` as one integer >= `least` per axis; UsageError if it is not."""
    entries = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(entries) == count and all(_is_count(entry, least) for entry in entries):
        return entries
    raise UsageError(
        f"`{name}` takes as `{label}` an integer >= {least}, or {count} of them, one a spatial"
        f" axis; got {value!r}"
    )


def _same(axis: AxisWindows) -> tuple[int, int]:
    positions = -(-axis.dim // axis.stride)
    total = (positions - 1) * axis.stride + axis.reach - axis.dim
    # Windows that leave no gaps need no comparison, which would be a guard for a symbolic dim.
    total = total if axis.reach >= axis.stride else max(0, total)
    return total // 2, total - total // 2


def sides_of(
    name: str,
    padding: Padding,
    count: int,
    *,
    names: str = '"same", "valid", ',
    trims: bool = False,
) -> list[tuple[int, int]]:
    """Return `padding` as (low, high) per axis; UsageError if it is malformed.

    With `trims`, sides may be negative. `names` lists the words that the functional takes.
    """
    if padding == "valid" and names:
        return [(0, 0)] * count
    entries = tuple(padding) if isinstance(padding, Sequence) else (padding,) * count
    sides = [pair for pair in (_side_pair(entry, trims) for entry in entries) if pair is not None]
    if len(sides) == len(entries) == count:
        return sides
    integer = "an integer" if trims else "an integer >= 0"
    raise UsageError(
        f"`{name}` takes as `padding` {names}{integer}, or {count} entries, one a"
        f" spatial axis, each an integer or a pair (low, high); got {padding!r}"
    )


def _side_pair(entry: object, trims: bool) -> tuple[int, int] | None:
    """Return an entry of a padding as (low, high), None if it is not one."""
    least = None if trims else 0
    sides = cast("Sequence[object]", entry) if isinstance(entry, Sequence) else (entry, entry)
    low, high = sides if len(sides) == 2 else (None, None)
    return (low, high) if _is_count(low, least) and _is_count(high, least) else None


def _is_count(value: object, least: int | None) -> TypeGuard[int]:
    # Paddings that keep `ceil(dim / stride)` positions of a symbolic dim are symbolic themselves.
    if not isinstance(value, (int, SymbolicDim)) or isinstance(value, bool):
        return False
    return least is None or value >= least


@functional(composite=True)
def max_pool(
    x: Tensor,
    kernel: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    axes: Sequence[int] | None = None,
) -> Tensor:
    """The largest element under each position of a window; NaN wins. As torch's `max_pool2d`.

    Reals [N, spatial.., C] -> [N, positions.., C]; `axes` names the spatial axes where they are not
    all but the first and the last. Each becomes `floor((dim + low + high - reach) / stride) + 1`
    with `reach = (kernel - 1) * dilation + 1`. `stride` is `kernel` unless given; `kernel`,
    `stride` and `dilation` are an integer or one for each axis, `padding` is as in `conv2d`. With
    `ceil_mode` sizes are rounded up; a last window may extend past the end, but not start in the
    high padding.

    UsageError for tensors without spatial axes, other types, a kernel larger than a padded axis
    that is not empty, and padding so wide that a window contains no element.
    """
    require_dtype("max_pool", REALS, x=x)
    windows = _windows("max_pool", x, kernel, stride, padding, dilation, ceil_mode, axes)[1]
    return _reduced("max", x, windows)


@functional
def max_pool_with_indices(
    x: Tensor,
    kernel: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    axes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """`max_pool` and the indices of its elements, as torch's `max_pool2d(return_indices=True)`.

    An index, si64, counts the elements of the spatial axes in row-major order. The index is that of
    the first largest element, or of the last NaN. Parameters and errors are as for `max_pool`.
    """
    best = max_pool(x, kernel, stride, padding, dilation, ceil_mode, axes)
    windows = _windows("max_pool", x, kernel, stride, padding, dilation, ceil_mode, axes)[1]
    inner = [axis.axis for axis in windows]
    order = [*(axis for axis in range(x.rank) if axis not in inner), *inner]
    lead = x.rank - len(inner)
    shape = [best.shape[axis] for axis in order]
    planes = (math.prod(shape[:lead]), *(axis.dim for axis in windows), 1)
    values = _boxes(primitives.reshape(primitives.transpose(x, order), planes), windows, None)
    count = math.prod(planes[1:])
    numbers = (
        primitives.iota((count,), 0, dtypes.si64)
        if symbols_of((count,))
        else primitives.constant(np.arange(count))
    )
    numbers = primitives.reshape(numbers, (1, *planes[1:]))
    where = expand(_boxes(numbers, windows, -1), values.shape)
    top = primitives.reshape(primitives.transpose(best, order), (*values.shape[:-1], 1))
    top = expand(top, values.shape)
    inside = primitives.compare(where, splat(0, where.dtype, where.shape), "ge")
    # A zero of the padding may equal the largest element.
    is_best = primitives.bit_and(primitives.compare(values, top, "eq"), inside)
    beyond = expand(size_scalar(count, where.dtype), where.shape)
    found = primitives.reduce(primitives.select(is_best, where, beyond), "min", [-1])
    if x.dtype.is_float:
        is_nan = primitives.compare(values, values, "ne")
        # The last NaN: the loop of torch's `max_pool2d` takes every NaN that it meets.
        nowhere = splat(-1, where.dtype, where.shape)
        last = primitives.reduce(primitives.select(is_nan, where, nowhere), "max", [-1])
        zero = splat(0, last.dtype, last.shape)
        found = primitives.select(primitives.compare(last, zero, "ge"), last, found)
    found = primitives.reshape(found, tuple(shape))
    return best, primitives.transpose(found, [order.index(axis) for axis in range(x.rank)])


@functional(composite=True)
def average_pool(
    x: Tensor,
    kernel: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Extents = 1,
    axes: Sequence[int] | None = None,
) -> Tensor:
    """The mean of floats under each position of a window, as torch's `avg_pool2d`.

    Padding zeros count as elements unless `count_include_pad` is false; positions past the padding
    with `ceil_mode` never count. Sums are divided by `divisor_override` if given. 8- and 16-bit
    floats are summed and divided in f32. Shapes, the other parameters and errors are as for
    `max_pool`.
    """
    require_float("average_pool", x=x)
    plain, windows = _windows("average_pool", x, kernel, stride, padding, dilation, ceil_mode, axes)
    sums = _reduced("sum", x, windows, x.dtype.accumulator)
    if divisor_override is not None:
        counts = [np.array([divisor_override])]
    elif any(side != 0 for axis in windows for side in (axis.low, axis.high)):
        sides = [(axis.low, axis.high) if count_include_pad else (0, 0) for axis in plain]
        if symbols_of(axis.dim for axis in plain):
            sizes = expand(_sizes(x, windows, sides), sums.shape)
            return converted(primitives.div(sums, sizes), x.dtype)
        counts = [
            _counts(axis, -low, axis.dim + high)
            for axis, (low, high) in zip(windows, sides, strict=True)
        ]
    else:
        counts = [np.array([axis.size]) for axis in windows]
    return _mean(sums, counts, [axis.axis for axis in windows], x.dtype)


@functional
def adaptive_average_pool(
    x: Tensor, output_size: Extents, axes: Sequence[int] | None = None
) -> Tensor:
    """The means of a grid of `output_size` bins, as torch's `adaptive_avg_pool2d`.

    Floats [N, spatial.., C] -> [N, output_size.., C], with `axes` as in `max_pool`. Bin i of n
    holds the elements from `floor(i * dim / n)` to before `ceil((i + 1) * dim / n)` of an axis:
    bins may overlap, and n may exceed the dim. 8- and 16-bit floats are summed and divided in f32.

    UsageError for tensors without spatial axes, other types, sizes below 1, and an empty axis.
    """
    grid = _grid("adaptive_average_pool", x, output_size, axes)
    if axes is None and set(grid.values()) == {1}:
        return global_average_pool(x, keepdims=True)
    kernel = _equal_bins(x, grid)
    if kernel is not None:
        return average_pool(x, kernel, axes=axes)
    wide = x.dtype.accumulator
    sums = converted(x, wide)
    for axis, size in grid.items():
        sums = _binned("sum", sums, axis, size)
    spans = [_spans(x.shape[axis], size) for axis, size in grid.items()]
    return _mean(sums, [stops - starts for starts, stops in spans], list(grid), x.dtype)


@functional
def adaptive_max_pool(x: Tensor, output_size: Extents, axes: Sequence[int] | None = None) -> Tensor:
    """The largest elements of a grid of `output_size` bins; NaN wins.

    As torch's `adaptive_max_pool2d`. Shapes, bins and errors are as for `adaptive_average_pool`.
    """
    grid = _grid("adaptive_max_pool", x, output_size, axes)
    if set(grid.values()) == {1}:
        return primitives.reduce(x, "max", list(grid), keepdims=True)
    kernel = _equal_bins(x, grid)
    if kernel is not None:
        return max_pool(x, kernel, axes=axes)
    for axis, size in grid.items():
        x = _binned("max", x, axis, size)
    return x


@functional(composite=True)
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
    return converted(primitives.div(sums, splat(count, wide, sums.shape)), x.dtype)


def _spatial(name: str, x: Tensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes that are pooled: those named, or all but the first and the last."""
    if axes is not None:
        return axes_of(name, axes, x)
    if x.rank < 3:
        raise UsageError(f"`{name}` needs `x` [N, spatial.., C], got `{x.type}`")
    return tuple(range(1, x.rank - 1))


def _windows(
    name: str,
    x: Tensor,
    kernel: Extents,
    stride: Extents | None,
    padding: Padding,
    dilation: Extents,
    ceil_mode: bool,
    axes: Sequence[int] | None,
) -> tuple[Windows, Windows]:
    """Return the windows without and with `ceil_mode`; UsageError if one has no element of `x`."""
    steps = kernel if stride is None else stride
    windows = windows_of(name, x, kernel, steps, padding, dilation, _spatial(name, x, axes))
    standing = tuple(_ceiled(axis) for axis in windows) if ceil_mode else windows
    require_fit(name, x, tuple(axis for axis in standing if axis.dim != 0))
    for axis, given in zip(standing, windows, strict=True):
        if axis.positions >= 1 and axis.misses():
            raise UsageError(
                f"`{name}` with padding ({given.low}, {given.high}) on axis {axis.axis} of"
                f" `{x.type}` has a window over {axis.reach} elements that holds nothing but"
                " padding"
            )
    return windows, standing


def _boxes(x: Tensor, windows: Windows, value: int | None) -> Tensor:
    """Return the elements of each window of x [planes, spatial.., 1] on the last axis."""
    return primitives.extract_patches(
        x,
        [axis.size for axis in windows],
        [axis.stride for axis in windows],
        [(axis.low, axis.high) for axis in windows],
        [axis.dilation for axis in windows],
        value,
    )


def _ceiled(axis: AxisWindows) -> AxisWindows:
    """Return the window with padding above for a position that is partly outside the axis."""
    room = axis.low + axis.dim + axis.high - axis.reach
    positions = -(-room // axis.stride) + 1
    # As torch's `pooling_output_shape`: no window starts in the high padding. Most windows reach
    # too far for that, whatever the size is: a free one needs no guard.
    may_start_outside = axis.reach < axis.high + axis.stride
    is_outside = may_start_outside and (positions - 1) * axis.stride >= axis.low + axis.dim
    positions -= is_outside
    if positions < 1:
        return axis
    high = (positions - 1) * axis.stride + axis.reach - axis.low - axis.dim
    return replace(axis, high=max(axis.high, high) if is_outside else high)


def _reduced(
    kind: Literal["max", "sum"], x: Tensor, windows: Windows, out_dtype: DType | None = None
) -> Tensor:
    """Return a reduction of `x` under each position of the windows."""
    moves = {axis.axis: axis for axis in windows}
    still = AxisWindows(0, 1, 1, 1, 1)
    each = [moves.get(axis, still) for axis in range(x.rank)]
    return primitives.reduce_window(
        x,
        kind,
        tuple(axis.size for axis in each),
        tuple(axis.stride for axis in each),
        [(axis.low, axis.high) for axis in each],
        tuple(axis.dilation for axis in each),
        out_dtype=out_dtype and _unless(x.dtype, out_dtype),
    )


def _unless(dtype: DType, wide: DType) -> DType | None:
    """Return `wide` as an attribute: None for the default."""
    return None if wide is dtype else wide


def _sizes(x: Tensor, windows: Windows, sides: Sequence[tuple[int, int]]) -> Tensor:
    """Return how many elements each window holds, counting the axes plus `sides` of their padding.

    Computed at run time, as sums of ones, for symbolic axes. Other axes have size 1.
    """
    inner: list[AxisWindows] = []
    shape = [1] * x.rank
    for axis, (low, high) in zip(windows, sides, strict=True):
        shape[axis.axis] = low + axis.dim + high
        inner.append(replace(axis, low=axis.low - low, high=axis.high - high))
    dtype = x.dtype.accumulator
    return _reduced("sum", splat(1, dtype, tuple(shape)), tuple(inner))


def _counts(axis: AxisWindows, first: int, end: int) -> np.ndarray:
    """Return how many of the indices [first, end) each window holds."""
    starts = np.array(axis.starts)
    below = np.maximum(-((starts - first) // axis.dilation), 0)  # elements before `first`
    upto = -((starts - end) // axis.dilation)  # elements before `end`
    return np.minimum(upto, axis.size) - below


def _mean(sums: Tensor, counts: list[np.ndarray], axes: list[int], dtype: DType) -> Tensor:
    """`sums` divided by the sizes of the windows, given for each of `axes`, as `dtype`."""
    if all(len({*each.tolist()}) == 1 for each in counts):
        sizes = splat(math.prod(int(each[0]) for each in counts), sums.dtype)
    else:
        shapes = [(-1, *[1] * (sums.rank - 1 - axis)) for axis in axes]
        tensors = [
            primitives.constant(each.reshape(shape), sums.dtype)
            for each, shape in zip(counts, shapes, strict=True)
        ]
        sizes = tensors[0]
        for each in tensors[1:]:
            sizes = primitives.mul(*broadcast("average_pool", sizes, each))
    return converted(primitives.div(sums, expand(sizes, sums.shape)), dtype)


def _grid(name: str, x: Tensor, output_size: Extents, axes: Sequence[int] | None) -> dict[int, int]:
    """Return the number of bins on each axis that is pooled."""
    require_float(name, x=x)
    pooled = _spatial(name, x, axes)
    if any(x.shape[axis] == 0 for axis in pooled):
        raise UsageError(f"`{name}` needs an image with elements, got `{x.type}`")
    sizes = extents(name, "output_size", output_size, len(pooled))
    return dict(zip(pooled, sizes, strict=True))


def _equal_bins(x: Tensor, grid: Mapping[int, int]) -> tuple[int, ...] | None:
    """Return the size of the bins if they are equal and disjoint, else None."""
    if any(x.shape[axis] % size for axis, size in grid.items()):
        return None
    return tuple(x.shape[axis] // size for axis, size in grid.items())


def _spans(dim: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each bin."""
    bins = np.arange(count)
    return bins * dim // count, -(-(bins + 1) * dim // count)


def _binned(kind: Literal["max", "sum"], x: Tensor, axis: int, count: int) -> Tensor:
    """Combine `axis` of `x` over `count` bins: a lookup of their elements, and a reduction.

    Bins are filled up to the largest size by repeating their last element, or with zeros for sums.
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
