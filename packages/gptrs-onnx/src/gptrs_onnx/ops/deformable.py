"""Convolutions whose windows bend: each element of a window is read where an offset says."""

from __future__ import annotations

import math
from itertools import product as combinations

import numpy as np

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.ops.sampling import read_places, taps_of
from gptrs_onnx.ops.windows import Geometry, geometry_of
from gptrs_onnx.registry import converts
from gptrs_onnx.values import constant


@converts("DeformConv")
def deform_conv(
    node: Node,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return x [N, C, spatial..] convolved at moved places (Zhu et al. 2019).

    weight [O, C / group, kernel..], offset [N, offset groups * elements * axes, out..], mask
    [N, offset groups * elements, out..]; what lies outside of x is zero.
    """
    kernel = node.integers("kernel_shape", weight.shape[2:])
    if kernel != list(weight.shape[2:]):
        node.malformed(f"has `kernel_shape` {kernel} and a weight `{weight.type}`")
    spatial = [int(size) for size in x.shape[2:]]
    geometry = geometry_of(node, spatial, kernel)
    parts, groups = node.integer("offset_group", 1), node.integer("group", 1)
    if min(parts, groups) < 1 or x.shape[1] % parts or x.shape[1] % groups:
        node.malformed(f"has {groups} groups and {parts} of offsets for `{x.type}`")
    batch, elements = x.shape[0], math.prod(kernel)
    out = list(offset.shape[2:])
    moved = F.reshape(offset, [batch * parts, elements, len(spatial), *out])
    base = _places(node, geometry, out)
    places = [
        F.squeeze(F.slice_axis(moved, 2, axis, 1), 2) + F.cast(constant(each), x.dtype)
        for axis, each in enumerate(base)
    ]
    images = F.reshape(x, [batch * parts, x.shape[1] // parts, *spatial])
    values = _between(images, places)
    if mask is not None:
        values = values * F.reshape(mask, [batch * parts, 1, elements, *out])
    columns = F.reshape(values, [batch, groups, weight.shape[1] * elements, math.prod(out)])
    rows = F.reshape(weight, [groups, weight.shape[0] // groups, weight.shape[1] * elements])
    made = F.reshape(F.matmul(rows, columns), [batch, weight.shape[0], *out])
    if bias is None:
        return made
    return made + F.reshape(bias, [-1, *(1 for _ in out)])


def _places(node: Node, geometry: Geometry, out: list[int]) -> list[np.ndarray]:
    """Return where windows read without an offset, [elements, out..] for each axis."""
    node.require_bounded(math.prod(geometry.kernel) * math.prod(int(size) for size in out))
    count = len(out)
    axes: list[np.ndarray] = []
    for axis in range(count):
        inner = np.arange(geometry.kernel[axis]) * geometry.dilations[axis]
        outer = np.arange(out[axis]) * geometry.strides[axis] - geometry.pads[axis][0]
        inner = inner.reshape([-1 if i == axis else 1 for i in range(2 * count)])
        outer = outer.reshape([-1 if i == count + axis else 1 for i in range(2 * count)])
        whole = np.broadcast_to(inner + outer, (*geometry.kernel, *out))
        axes.append(whole.reshape(-1, *out).astype(np.float64))
    return axes


def _between(x: Tensor, places: list[Tensor]) -> Tensor:
    """Return x [B, C, spatial..] at places [B, out..], linear between its elements."""
    total: Tensor | None = None
    for choice in combinations(*(taps_of(place, "linear") for place in places)):
        value = read_places(x, [tap for tap, _ in choice], "zeros", True)
        for _, weight in choice:
            assert weight is not None
            value = value * F.expand_dims(weight, 1)
        total = value if total is None else total + value
    assert total is not None
    return total
