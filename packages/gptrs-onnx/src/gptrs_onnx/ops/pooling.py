"""Pooling over any number of spatial axes, channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
from msgspec import Struct

from gptrs.api.importers import size_tensor
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node, Sizes, constant, converts

# Where the windows of convolutions and pooling lie, from the attributes that they share.


class Geometry(Struct, frozen=True):
    """Window sizes, strides, dilations and (low, high) padding, an entry a spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def reaches(self) -> tuple[int, ...]:
        """Elements from the first to the last one of a window."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def geometry_of(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Geometry:
    """Return the windows over axes of sizes `spatial`; ModelError for wrong attributes."""
    count = len(spatial)
    strides = node.integers("strides", [1] * count)
    dilations = node.integers("dilations", [1] * count)
    given = node.integers("pads", [0] * (2 * count))
    if not len(kernel) == len(strides) == len(dilations) == len(given) / 2 == count:
        node.malformed(f"has attributes for another number of axes than {count}")
    if min((*kernel, *strides, *dilations), default=1) < 1:
        node.malformed("has a size, stride or dilation below 1")
    pads = [(given[i], given[i + count]) for i in range(count)]
    automatic = node.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        totals = [_missing(*each) for each in zip(spatial, strides, reaches, strict=True)]
        pads = [split_padding(total, automatic) for total in totals]
    elif automatic == "VALID":
        pads = [(0, 0)] * count
    elif automatic != "NOTSET":
        node.malformed(f"has `auto_pad` {automatic[:40]!a}")
    return Geometry(tuple(kernel), tuple(strides), tuple(dilations), tuple(pads))


def _missing(size: int, stride: int, reach: int) -> int:
    """Return the elements without which an axis has fewer than `ceil(size / stride)` positions."""
    found = (-(-size // stride) - 1) * stride + reach - size
    # Windows that leave no gaps always miss some or none: a free size needs no guard for that.
    return found if reach >= stride else max(0, found)


def split_padding(total: int, automatic: str) -> tuple[int, int]:
    """Return (low, high) with the odd element where `SAME_UPPER` or `SAME_LOWER` says."""
    less, more = total // 2, total - total // 2
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def channels_last(x: Tensor) -> Tensor:
    """Return [N, C, spatial..] as [N, spatial.., C]."""
    return F.transpose(x, [0, *range(2, x.rank), 1])


def channels_first(x: Tensor) -> Tensor:
    """Return [N, spatial.., C] as [N, C, spatial..]."""
    return F.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])


@converts("MaxPool")
def max_pool(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    """Return the largest element under each window and, if requested, its index in x."""
    moves = _windows(node, x)
    if not node.wants(1):
        return (F.max_pool(x, **moves),)
    best, places = F.max_pool_with_indices(x, **moves)
    spatial = x.shape[2:]
    count, planes = math.prod(spatial), x.shape[0] * x.shape[1]
    if node.flag("storage_order"):  # columns first
        numbered = np.arange(int(count)).reshape(spatial[::-1]).T.reshape(-1)
        places = F.take(constant(numbered), places, 0)
    # ONNX counts indices through the whole tensor, torch within a plane.
    offsets = F.reshape(F.arange(planes) * size_tensor(count), [*x.shape[:2], *[1] * len(spatial)])
    return best, places + offsets


@converts("com.microsoft.NhwcMaxPool")
def max_pool_nhwc(node: Node, x: Tensor) -> Tensor:
    """Return the largest element under each window of x [N, spatial.., C]."""
    first = channels_first(x)
    return channels_last(F.max_pool(first, **_windows(node, first)))


@converts("AveragePool")
def average_pool(node: Node, x: Tensor, *, count_include_pad: bool = False) -> Tensor:
    """Return the mean under each window; padding counts as zeros only if the node says so."""
    return F.average_pool(x, **_windows(node, x), count_include_pad=count_include_pad)


@converts("LpPool")
def lp_pool(node: Node, x: Tensor, *, p: int = 2) -> Tensor:
    """Return the p-norm of the elements under each window."""
    powers = _power(F.abs(x), p)
    # A mean with the divisor 1 is the sum over a window.
    return _root(F.average_pool(powers, **_windows(node, x), divisor_override=1), p)


@converts.each({"GlobalAveragePool": F.mean, "GlobalMaxPool": F.max})
def global_pool(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return the mean or the largest element of each channel."""
    return function(x, list(range(2, x.rank)), keepdims=True)


@converts("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """Return the p-norm of each channel."""
    return _root(global_pool(F.sum, _power(F.abs(x), p)), p)


class _Windows(TypedDict):
    """Arguments shared by the functionals of pooling."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilation: Sequence[int]
    ceil_mode: bool
    axes: Sequence[int]


def _windows(node: Node, x: Tensor) -> _Windows:
    made = geometry_of(node, x.shape[2:], node.integers("kernel_shape"))
    node.require_bounded(
        *(size + sum(sides) for size, sides in zip(x.shape[2:], made.pads, strict=True))
    )
    return {
        "kernel": made.kernel,
        "stride": made.strides,
        "padding": made.pads,
        "dilation": made.dilations,
        "ceil_mode": node.flag("ceil_mode"),
        "axes": range(2, x.rank),
    }


def _power(x: Tensor, order: int) -> Tensor:
    return x if order == 1 else x * x if order == 2 else F.pow(x, float(order))


def _root(x: Tensor, order: int) -> Tensor:
    return F.sqrt(x) if order == 2 else F.pow(x, 1.0 / order)


@converts("MaxUnpool")
def max_unpool(
    x: Tensor,
    places: Tensor,
    shape: Sizes | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Return zeros with the elements of x at the indices that `MaxPool` returned.

    The indices refer to the shape that the windows imply; `shape` adds zeros at the ends.
    """
    count = len(kernel_shape)
    strides, pads = strides or [1] * count, pads or [0] * (2 * count)
    inferred = list(x.shape[:2])
    for i, size in enumerate(x.shape[2:]):
        cut = pads[i] + pads[i + count] if shape is None else 0
        inferred.append((size - 1) * strides[i] + kernel_shape[i] - cut)
    zeros = F.zeros([math.prod(inferred)], x.dtype)
    flat = F.scatter(zeros, F.reshape(places, [-1]), F.reshape(x, [-1]), 0)
    made = F.reshape(flat, inferred)
    wanted = inferred if shape is None else shape
    sides = [(0, want - have) for want, have in zip(wanted, inferred, strict=True)]
    return F.pad(made, sides) if any(high for _, high in sides) else made


@converts("Col2Im")
def columns_to_image(node: Node, x: Tensor, image: Sizes, block: Sizes) -> Tensor:
    """Return the sum of blocks put back where windows took them from (torch's `fold`)."""
    spatial, kernel = image, block
    geometry = geometry_of(node, spatial, kernel)
    size = math.prod(kernel)
    node.require_bounded(size, *spatial)
    batch, channels = x.shape[0], x.shape[1] // size
    padded = [s + low + high for s, (low, high) in zip(spatial, geometry.pads, strict=True)]
    grid = np.arange(math.prod(padded)).reshape(padded)
    positions = [
        range(0, have - reach + 1, stride)
        for have, reach, stride in zip(padded, geometry.reaches, geometry.strides, strict=True)
    ]
    offsets = [np.arange(k) * d for k, d in zip(kernel, geometry.dilations, strict=True)]
    axes = [
        np.add.outer(each, np.asarray(list(starts)))
        for each, starts in zip(offsets, positions, strict=True)
    ]
    count = len(axes)
    index = tuple(
        axis.reshape(
            [
                *(axis.shape[0] if j == i else 1 for j in range(count)),
                *(axis.shape[1] if j == i else 1 for j in range(count)),
            ]
        )
        for i, axis in enumerate(axes)
    )
    places = grid[index].reshape(-1)
    rows = F.reshape(x, [batch * channels, len(places)])
    zeros = F.zeros([batch * channels, grid.size], x.dtype)
    where = F.broadcast_to(constant(places.astype(np.int64)), rows.shape)
    summed = F.reshape(F.scatter(zeros, where, rows, 1, "add"), [batch, channels, *padded])
    starts = [0, 0, *(low for low, _ in geometry.pads)]
    stops = [
        batch,
        channels,
        *(low + s for s, (low, _) in zip(spatial, geometry.pads, strict=True)),
    ]
    return F.slice(summed, starts, stops)
