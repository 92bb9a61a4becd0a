"""Convolutions over any number of spatial axes, and those turned round."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.api import Tensor, dtypes, primitives
from gptrs.api import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.ops.windows import (
    Geometry,
    channels_first,
    channels_last,
    geometry_of,
    split_padding,
)
from gptrs_onnx.registry import converts


@converts("Conv")
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the cross-correlation of x [N, C, spatial..] with weight [O, C / group, kernel..]."""
    kernel = node.integers("kernel_shape", weight.shape[2:])
    if kernel != list(weight.shape[2:]):
        node.malformed(f"has `kernel_shape` {kernel} and a weight `{weight.type}`")
    geometry = geometry_of(node, x.shape[2:], kernel)
    return convolved(x, weight, bias, geometry, node.integer("group", 1))


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, groups: int
) -> Tensor:
    """Return a convolution whose windows `geometry` gives, channels first."""
    last = channels_last(x)
    spatial = x.rank - 2
    pads = geometry.pads
    if any(each < 0 for pair in pads for each in pair):
        starts = [0, *(max(-low, 0) for low, _ in pads), 0]
        stops = [
            size - cut
            for size, cut in zip(
                last.shape, (0, *(max(-high, 0) for _, high in pads), 0), strict=True
            )
        ]
        last = F.slice(last, starts, stops)
        pads = tuple((max(low, 0), max(high, 0)) for low, high in pads)
    if spatial in (1, 2):
        function = F.conv1d if spatial == 1 else F.conv2d
        made = function(last, weight, bias, geometry.strides, pads, geometry.dilations, groups)
    else:
        made = _by_patches(last, weight, geometry, pads, groups)
        made = made if bias is None else made + bias
    return channels_first(made)


def _by_patches(
    x: Tensor,
    weight: Tensor,
    geometry: Geometry,
    pads: Sequence[tuple[int, int]],
    groups: int,
) -> Tensor:
    """Return windows of x [N, spatial.., C] side by side, times the weight as a matrix."""
    patches = primitives.extract_patches(
        x, geometry.kernel, geometry.strides, pads, geometry.dilations
    )
    outputs, inputs = weight.shape[:2]
    size = math.prod(geometry.kernel)
    turned = F.transpose(weight, [*range(2, weight.rank), 1, 0])
    if groups == 1:
        matrix = F.reshape(turned, [size * inputs, outputs])
        return primitives.dot_general(patches, matrix, ([patches.rank - 1], [0]))
    lead = patches.shape[:-1]
    boxes = F.reshape(patches, [math.prod(lead), size, groups, inputs])
    matrices = F.reshape(turned, [size, inputs, groups, outputs // groups])
    products = primitives.dot_general(boxes, matrices, ([1, 3], [0, 1]), ([2], [2]))
    return F.reshape(F.transpose(products, [1, 0, 2]), [*lead, outputs])


@converts("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x with zeros between its elements, convolved with the weight turned round.

    x [N, C, spatial..], weight [C, O / group, kernel..] -> [N, O, spatial..]: the gradient of a
    convolution by its input (Dumoulin, Visin 2016).
    """
    spatial = x.rank - 2
    groups, kernel = node.integer("group", 1), list(weight.shape[2:])
    strides = node.integers("strides", [1] * spatial)
    dilations = node.integers("dilations", [1] * spatial)
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extra, pads = _transposed_pads(node, x.shape[2:], strides, reaches)
    if groups == 1 and kernel == strides == reaches and not any(map(any, [extra, *pads])):
        return _side_by_side(x, weight, bias)
    inputs, outputs = weight.shape[:2]
    parts = F.reshape(weight, [groups, inputs // groups, outputs, *kernel])
    parts = F.flip(F.swap_axes(parts, 1, 2), list(range(3, 3 + spatial)))
    turned = F.reshape(parts, [groups * outputs, inputs // groups, *kernel])
    low = [0, 0, *([0] * spatial)]
    spread = primitives.pad(x, low, low, [0, 0, *(stride - 1 for stride in strides)])
    sides = tuple(
        (reach - 1 - first, reach - 1 - last + more)
        for reach, (first, last), more in zip(reaches, pads, extra, strict=True)
    )
    plain = Geometry(tuple(kernel), (1,) * spatial, tuple(dilations), sides)
    return convolved(spread, turned, bias, plain, groups)


def _side_by_side(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a convolution turned round whose windows do not overlap: a product, rearranged."""
    inputs, outputs, *kernel = weight.shape
    turned = F.transpose(weight, [0, *range(2, weight.rank), 1])
    matrix = F.reshape(turned, [inputs, math.prod(kernel) * outputs])
    last = channels_last(x)
    made = primitives.dot_general(last, matrix, ([last.rank - 1], [0]))
    spatial, count = x.shape[2:], len(kernel)
    split = F.reshape(made, [x.shape[0], *spatial, *kernel, outputs])
    pairs = [axis for i in range(1, count + 1) for axis in (i, i + count)]
    apart = F.transpose(split, [0, *pairs, 2 * count + 1])
    sizes = [size * step for size, step in zip(spatial, kernel, strict=True)]
    result = F.reshape(apart, [x.shape[0], *sizes, outputs])
    return channels_first(result if bias is None else result + bias)


def _transposed_pads(
    node: Node, sizes: Sequence[int], strides: Sequence[int], reaches: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return elements that `output_padding` adds at the ends, and what is cut off both sides."""
    count = len(sizes)
    extra = node.integers("output_padding", [0] * count)
    given = node.integers("pads", [0] * (2 * count))
    automatic = node.text("auto_pad", "NOTSET")
    full = [
        stride * (size - 1) + more + reach
        for stride, size, more, reach in zip(strides, sizes, extra, reaches, strict=True)
    ]
    if "output_shape" in node:
        wanted = node.integers("output_shape")[-count:]
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    else:
        return extra, [(given[i], given[i + count]) for i in range(count)]
    totals = [have - want for have, want in zip(full, wanted, strict=True)]
    order = "SAME_LOWER" if automatic == "NOTSET" else automatic
    return extra, [split_padding(total, order) for total in totals]


@converts("ConvInteger")
def conv_integer(
    node: Node,
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    weight_zero: Tensor | None = None,
) -> Tensor:
    """Return the si32 convolution of integers without their zero points."""
    left, right = F.cast(x, dtypes.si32), F.cast(weight, dtypes.si32)
    if x_zero is not None:
        left = left - F.cast(x_zero, dtypes.si32)
    if weight_zero is not None:
        zero = F.cast(weight_zero, dtypes.si32)
        right = right - (F.reshape(zero, [-1, *[1] * (weight.rank - 1)]) if zero.rank else zero)
    return integer_convolved(node, left, right)


def integer_convolved(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    """Return an exact convolution of si32, channels first; padding counts as 0."""
    geometry = geometry_of(node, x.shape[2:], weight.shape[2:])
    groups = node.integer("group", 1)
    return channels_first(_by_patches(channels_last(x), weight, geometry, geometry.pads, groups))
