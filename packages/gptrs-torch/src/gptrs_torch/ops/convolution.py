"""Convolutions over any number of spatial axes, and those turned round."""

from __future__ import annotations

import math

from gptrs.api import Tensor, primitives
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts


@converts("convolution")
def convolution(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """Return the cross-correlation of x [N, C, spatial..] with a weight, or its transpose."""
    spatial = weight.rank - 2
    stride, padding, dilation, output_padding = (
        list(each) * spatial if len(each) == 1 else list(each)
        for each in (stride, padding, dilation, output_padding)
    )
    single = x.rank < weight.rank
    batch = F.expand_dims(x, 0) if single else x
    last = F.transpose(batch, [0, *range(2, batch.rank), 1])
    pads = [(each, each) for each in padding]
    apart = list(weight.shape[2:]) == stride and not any((*padding, *output_padding))
    if transposed and groups == 1 and apart and set(dilation) <= {1}:
        made = _side_by_side(last, weight)
        return _channels_first(made if bias is None else F.add(made, bias), single)
    if transposed:
        reach = [(k - 1) * d for k, d in zip(weight.shape[2:], dilation, strict=True)]
        pads = [
            (far - low, far - low + more)
            for far, low, more in zip(reach, padding, output_padding, strict=True)
        ]
        last, weight = _spread(last, stride), _turned(weight, groups)
        stride = [1] * spatial
        last, pads = _cut(last, pads)
    if spatial in (1, 2):
        function = F.conv1d if spatial == 1 else F.conv2d
        made = function(last, weight, bias, stride, pads, dilation, groups)  # pyright: ignore[reportArgumentType]
    elif groups == 1:
        made = _by_patches(last, weight, stride, pads, dilation)
        made = made if bias is None else F.add(made, bias)
    else:
        node.refuse("has groups over three spatial axes")
    return _channels_first(made, single)


def _channels_first(x: Tensor, single: bool) -> Tensor:
    first = F.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    return F.squeeze(first, 0) if single else first


def _side_by_side(x: Tensor, weight: Tensor) -> Tensor:
    """Return a convolution turned round whose windows do not overlap: a product, rearranged."""
    inputs, outputs, *kernel = weight.shape
    count, sizes = len(kernel), x.shape[1:-1]
    turned = F.transpose(weight, [0, *range(2, weight.rank), 1])
    matrix = F.reshape(turned, [inputs, math.prod(kernel) * outputs])
    made = primitives.dot_general(x, matrix, ([x.rank - 1], [0]))
    split = F.reshape(made, [x.shape[0], *sizes, *kernel, outputs])
    pairs = [axis for i in range(1, count + 1) for axis in (i, i + count)]
    sizes = [size * step for size, step in zip(sizes, kernel, strict=True)]
    return F.reshape(F.transpose(split, [0, *pairs, 2 * count + 1]), [x.shape[0], *sizes, outputs])


def _spread(x: Tensor, stride: list[int]) -> Tensor:
    """Return x [N, spatial.., C] with `stride - 1` zeros between its elements."""
    if set(stride) == {1}:
        return x
    zeros = [0] * x.rank
    return primitives.pad(x, zeros, zeros, [0, *(each - 1 for each in stride), 0])


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Return [C, O / groups, kernel..] as the weight [O, C / groups, kernel..] turned round."""
    inputs, outputs, *kernel = weight.shape
    parts = F.reshape(weight, [groups, inputs // groups, outputs, *kernel])
    parts = F.flip(F.swap_axes(parts, 1, 2), list(range(3, 3 + len(kernel))))
    return F.reshape(parts, [groups * outputs, inputs // groups, *kernel])


def _cut(x: Tensor, pads: list[tuple[int, int]]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return x without what negative padding takes away, and the padding that is left."""
    if all(low >= 0 and high >= 0 for low, high in pads):
        return x, pads
    cut = [(0, 0), *((min(low, 0), min(high, 0)) for low, high in pads), (0, 0)]
    return F.pad(x, cut), [(max(low, 0), max(high, 0)) for low, high in pads]


def _by_patches(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    pads: list[tuple[int, int]],
    dilation: list[int],
) -> Tensor:
    """Return windows of x [N, spatial.., C] side by side, times the weight as a matrix."""
    outputs, inputs, *kernel = weight.shape
    patches = primitives.extract_patches(x, kernel, stride, pads, dilation)
    turned = F.transpose(weight, [*range(2, weight.rank), 1, 0])
    matrix = F.reshape(turned, [math.prod(kernel) * inputs, outputs])
    return primitives.dot_general(patches, matrix, ([patches.rank - 1], [0]))
