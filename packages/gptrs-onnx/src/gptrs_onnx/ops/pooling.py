"""Pooling over any number of spatial axes, channels first."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from gptrs.api import Tensor, primitives
from gptrs.api import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.ops.windows import Geometry, geometry_of
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, constant, numbers, scalar


@converts("MaxPool")
def max_pool(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    """Return the largest element under each window and, where asked for, its place in x."""
    geometry = _pooled(node, x)
    _require_padded_bounded(node, x, geometry)
    best = _reduced(x, "max", geometry)
    return (best, _places(node, x, best, geometry)) if node.wants(1) else (best,)


@converts("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    """Return the mean under each window; padding counts as zeros only if the node says so."""
    geometry = _pooled(node, x)
    _require_padded_bounded(node, x, geometry)
    return _mean(x, geometry, node.flag("count_include_pad"), _own_pads(node, x))


@converts("LpPool")
def lp_pool(node: Node, x: Tensor) -> Tensor:
    """Return the p-norm of what is under each window."""
    order = node.integer("p", 2)
    sums = _reduced(_power(F.abs(x), order), "sum", _pooled(node, x))
    return F.sqrt(sums) if order == 2 else F.pow(sums, 1.0 / order)


@converts("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    """Return the mean of each channel."""
    del node
    return F.mean(x, list(range(2, x.rank)), keepdims=True)


@converts("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    """Return the largest element of each channel."""
    del node
    return F.max(x, list(range(2, x.rank)), keepdims=True)


@converts("GlobalLpPool")
def global_lp_pool(node: Node, x: Tensor) -> Tensor:
    """Return the p-norm of each channel."""
    order = node.integer("p", 2)
    sums = F.sum(_power(F.abs(x), order), list(range(2, x.rank)), keepdims=True)
    return F.sqrt(sums) if order == 2 else F.pow(sums, 1.0 / order)


def _require_padded_bounded(node: Node, x: Tensor, geometry: Geometry) -> None:
    padded = (size + sum(sides) for size, sides in zip(x.shape[2:], geometry.pads, strict=True))
    node.require_bounded(*padded)


def _power(x: Tensor, order: int) -> Tensor:
    return x if order == 1 else x * x if order == 2 else F.pow(x, float(order))


def _own_pads(node: Node, x: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the padding without what `ceil_mode` adds."""
    return geometry_of(node, x.shape[2:], node.integers("kernel_shape")).pads


def _pooled(node: Node, x: Tensor) -> Geometry:
    """Return the windows, with the last ones that `ceil_mode` lets hang over."""
    plain = geometry_of(node, x.shape[2:], node.integers("kernel_shape"))
    if not node.flag("ceil_mode"):
        return plain
    pads: list[tuple[int, int]] = []
    for size, reach, stride, (low, high) in zip(
        x.shape[2:], plain.reaches, plain.strides, plain.pads, strict=True
    ):
        positions = -(-(size + low + high - reach) // stride) + 1
        if (positions - 1) * stride >= size + low:
            positions -= 1
        pads.append((low, max(high, (positions - 1) * stride + reach - low - size)))
    return Geometry(plain.kernel, plain.strides, plain.dilations, tuple(pads))


def _reduced(x: Tensor, kind: Literal["max", "sum"], geometry: Geometry) -> Tensor:
    """Return a reduction under each window [N, C, spatial..]."""
    return primitives.reduce_window(
        x,
        kind,
        (1, 1, *geometry.kernel),
        (1, 1, *geometry.strides),
        [(0, 0), (0, 0), *geometry.pads],
        (1, 1, *geometry.dilations),
    )


def _mean(
    x: Tensor, geometry: Geometry, with_pads: bool, own: tuple[tuple[int, int], ...]
) -> Tensor:
    sums = _reduced(x, "sum", geometry)
    if not any(low or high for low, high in geometry.pads):
        return sums / float(math.prod(geometry.kernel))
    counts = np.ones(())
    for axis, size in enumerate(x.shape[2:]):
        low, high = geometry.pads[axis]
        inner = own[axis] if with_pads else (0, 0)
        elements = np.zeros(low + size + high)
        elements[low - inner[0] : low + size + inner[1]] = 1
        reach, stride, step = (
            geometry.reaches[axis],
            geometry.strides[axis],
            geometry.dilations[axis],
        )
        starts = range(0, len(elements) - reach + 1, stride)
        own_counts = np.asarray([elements[start : start + reach : step].sum() for start in starts])
        counts = counts[..., None] * own_counts
    return sums / F.cast(constant(counts), x.dtype)


def _places(node: Node, x: Tensor, best: Tensor, geometry: Geometry) -> Tensor:
    """Return where in x, as numbers in row-major order, the first largest elements are."""
    spatial = x.shape[2:]
    count = math.prod(spatial)
    order = list(range(2, x.rank))
    if node.flag("storage_order"):
        order = order[::-1]
    inside = np.arange(count).reshape([x.shape[axis] for axis in order])
    numbered = np.transpose(inside, [order.index(axis) for axis in range(2, x.rank)])
    planes = x.shape[0] * x.shape[1]
    flat = F.reshape(x, [planes, *spatial, 1])
    values = _patches(flat, geometry, None)
    where = _patches(constant(numbered.reshape(1, *spatial, 1)), geometry, -1)
    is_best = F.logical_and(
        F.equal(values, F.reshape(best, [planes, *best.shape[2:], 1])), where >= 0
    )
    found = F.min(
        F.where(is_best, F.broadcast_to(where, values.shape), scalar(count, where.dtype)), -1
    )
    offsets = F.reshape(F.arange(planes) * count, [planes, *[1] * len(spatial)])
    return F.reshape(found + offsets, best.shape)


def _patches(x: Tensor, geometry: Geometry, value: int | None) -> Tensor:
    return primitives.extract_patches(
        x, geometry.kernel, geometry.strides, geometry.pads, geometry.dilations, value
    )


@converts("MaxUnpool", known=[2])
def max_unpool(node: Node, x: Tensor, places: Tensor, shape: Known | None = None) -> Tensor:
    """Return zeros with the elements of x at the places that `MaxPool` gave.

    The places are those of the shape that the windows give; `shape` adds zeros at the ends.
    """
    kernel = node.integers("kernel_shape")
    count = len(kernel)
    strides = node.integers("strides", [1] * count)
    pads = node.integers("pads", [0] * (2 * count))
    inferred = list(x.shape[:2])
    for i, size in enumerate(x.shape[2:]):
        cut = pads[i] + pads[i + count] if shape is None else 0
        inferred.append((size - 1) * strides[i] + kernel[i] - cut)
    zeros = F.zeros([math.prod(inferred)], x.dtype)
    flat = F.scatter(zeros, F.reshape(places, [-1]), F.reshape(x, [-1]), 0)
    made = F.reshape(flat, inferred)
    wanted = inferred if shape is None else numbers(shape)
    sides = [(0, want - have) for want, have in zip(wanted, inferred, strict=True)]
    return F.pad(made, sides) if any(high for _, high in sides) else made


@converts("Col2Im", known=[1, 2])
def columns_to_image(node: Node, x: Tensor, image: Known, block: Known) -> Tensor:
    """Return the sum of blocks put back where windows took them from (torch's `fold`)."""
    spatial, kernel = numbers(image), numbers(block)
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
