"""Convolutions over any number of spatial axes, and their transposes."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.ops.windows import channels_first, channels_last, geometry_of, split_padding
from gptrs_onnx.registry import converts


@converts("Conv")
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the cross-correlation of x [N, C, spatial..] with weight [O, C / group, kernel..]."""
    kernel = node.integers("kernel_shape", weight.shape[2:])
    if kernel != list(weight.shape[2:]):
        node.malformed(f"has `kernel_shape` {kernel} and a weight `{weight.type}`")
    return convolved(node, x, weight, bias)


def convolved(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the convolution of x [N, C, spatial..] by `weight` over the windows of a node."""
    made = geometry_of(node, x.shape[2:], weight.shape[2:])
    moves = (made.strides, made.pads, made.dilations, node.integer("group", 1))
    return channels_first(F.conv(channels_last(x), weight, bias, *moves))


@converts("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the transpose of a convolution, weight [C, O / group, kernel..]."""
    spatial = x.rank - 2
    kernel = weight.shape[2:]
    strides = node.integers("strides", [1] * spatial)
    dilations = node.integers("dilations", [1] * spatial)
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extra, pads = _transposed_pads(node, x.shape[2:], strides, reaches)
    moves = (strides, pads, extra, dilations, node.integer("group", 1))
    return channels_first(F.conv_transpose(channels_last(x), weight, bias, *moves))


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
    return convolved(node, left, right)
