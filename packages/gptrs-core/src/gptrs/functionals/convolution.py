"""Convolution over any number of spatial axes and its transpose, channels last."""

from __future__ import annotations

import math
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.examples import pattern_examples
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import flip, pad
from gptrs.functionals.operands import (
    NUMBERS,
    expand,
    require_dtype,
    require_float,
    require_one_of,
    require_same_dtype,
    require_shape,
)
from gptrs.functionals.pooling import (
    Extents,
    Padding,
    Windows,
    extents,
    require_fit,
    sides_of,
    windows_of,
)

_GEOMETRIES = (
    {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)},
    {"stride": (2, 3), "padding": ((0, 1), (2, 1)), "dilation": (2, 1)},
)
_BIASES: tuple[dict[str, str], ...] = ({}, {"bias": "f32[6]"})


@pattern_examples(
    {"x": "f32[2, 9, 8, 3]", "weight": weight, **bias, **geometry, "layout": layout}
    for layout, weight in (("oihw", "f32[6, 3, 3, 2]"), ("hwio", "f32[3, 2, 3, 6]"))
    for bias in _BIASES
    for geometry in _GEOMETRIES
)
@pattern_examples(
    {"x": "f32[2, 9, 8, 3]", "weight": weight, **bias, "stride": stride, "layout": layout}
    for layout, weight in (("oihw", "f32[6, 3, 1, 1]"), ("hwio", "f32[1, 1, 3, 6]"))
    for bias in _BIASES
    for stride in ((1, 1), (2, 2), (3, 2))
)
@functional(composite=True)
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    layout: Literal["oihw", "hwio"] = "oihw",
) -> Tensor:
    """Cross-correlation of images with kernels, as torch's `conv2d` (Dumoulin, Visin 2016).

    `out[n, i, j, o] = bias[o] + sum_{h, w, c} x[n, i * stride - low + h * dilation, .., c] *
    weight[o, c, h, w]`, with 0 for what lies in the padding.

    x [N, H, W, C], weight [O, C / groups, KH, KW] as in torch's checkpoints (or, with
    `layout="hwio"`, [KH, KW, C / groups, O]), bias [O] -> [N, OH, OW, O], of one float type; sums
    are kept in f32 for 8- and 16-bit floats. `stride` and `dilation` are an integer or (vertical,
    horizontal); `padding` is an integer, (vertical, horizontal), ((top, bottom), (left, right)),
    "valid" (none) or "same" (`OH = ceil(H / stride)`, an odd row at the bottom). Each of the
    `groups` sees its own C / groups channels and makes O / groups of the result; with as many
    groups as channels this is `depthwise_conv2d`.

    UsageError for other ranks, element types that are not floats or differ, channels that do not
    match or divide, strides or dilations below 1, and a kernel larger than the padded image.
    """
    kernel = _kernel_shape("conv2d", x, weight, layout, "hwio")
    _require_channels("conv2d", x, weight, bias, groups, kernel)
    windows = windows_of("conv2d", x, kernel[:2], stride, padding, dilation)
    require_fit("conv2d", x, windows)
    channels = x.shape[3]
    if groups == channels > 1:
        if layout == "hwio":
            weight = primitives.reshape(weight, (*kernel[:2], channels, kernel[3] // channels))
        return depthwise_conv2d(x, weight, bias, stride, padding, dilation, layout)
    return _convolved(x, _spatial_first(weight, layout, "hwio"), bias, windows, groups)


@pattern_examples(
    {"x": "f32[2, 9, 8, 6]", "weight": weight, **bias, **geometry, "layout": layout}
    for layout, weight in (("oihw", "f32[6, 1, 3, 2]"), ("hwio", "f32[3, 2, 6, 1]"))
    for bias in _BIASES
    for geometry in _GEOMETRIES
)
@functional(composite=True)
def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    layout: Literal["oihw", "hwio"] = "oihw",
) -> Tensor:
    """Convolve each channel with its own M kernels (Chollet 2016; `conv2d` in C groups).

    `out[n, i, j, c * M + m] = bias[..] + sum_{h, w} x[n, i * stride - low + h * dilation, .., c] *
    weight[c * M + m, 0, h, w]`.

    x [N, H, W, C], weight [C * M, 1, KH, KW] as in torch's checkpoints (or, with `layout="hwio"`,
    [KH, KW, C, M] as in TensorFlow's), bias [C * M] -> [N, OH, OW, C * M], of one float type. The
    other parameters and the errors are as for `conv2d`.
    """
    kernel = _kernel_shape("depthwise_conv2d", x, weight, layout, "hwio")
    channels, outputs = x.shape[3], kernel[2] * kernel[3]
    wanted = channels if layout == "hwio" else 1
    if kernel[2] != wanted or (outputs % channels if channels else outputs):
        form = "[KH, KW, C, M]" if layout == "hwio" else "[C * M, 1, KH, KW]"
        raise UsageError(
            f"`depthwise_conv2d` of `{x.type}` needs a `weight` {form} for its {channels} channels,"
            f" got `{weight.type}`"
        )
    if bias is not None:
        require_same_dtype("depthwise_conv2d", x, bias)
        require_shape("depthwise_conv2d", "bias", bias, (outputs,))
    windows = windows_of("depthwise_conv2d", x, kernel[:2], stride, padding, dilation)
    require_fit("depthwise_conv2d", x, windows)
    return _depthwise(x, _spatial_first(weight, layout, "hwio"), bias, windows)


@functional(composite=True)
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    layout: Literal["oiw", "wio"] = "oiw",
) -> Tensor:
    """Cross-correlation of sequences with kernels, as torch's `conv1d`.

    x [N, W, C], weight [O, C / groups, KW] as in torch's checkpoints (or, with `layout="wio"`,
    [KW, C / groups, O]), bias [O] -> [N, OW, O], of one float type. `padding` is an integer,
    ((low, high),), "valid" or "same". Everything else is as in `conv2d`.
    """
    kernel = _kernel_shape("conv1d", x, weight, layout, "wio")
    _require_channels("conv1d", x, weight, bias, groups, kernel)
    windows = windows_of("conv1d", x, kernel[:1], stride, padding, dilation)
    require_fit("conv1d", x, windows)
    arranged = _spatial_first(weight, layout, "wio")
    if groups == x.shape[2] > 1:
        return _depthwise(x, arranged, bias, windows)
    return _convolved(x, arranged, bias, windows, groups)


@functional
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation over any number of spatial axes, of numbers of any type.

    x [N, spatial.., C], weight [O, C / groups, kernel..], bias [O] -> [N, positions.., O]; sums of
    integers wrap. Floats over one and two axes are `conv1d` and `conv2d`, which have the formula,
    the parameters and the errors. Here, a negative padding takes elements away.
    """
    count = _require_numbers("conv", x, weight)
    if padding != "same":
        sides = sides_of("conv", padding, count, trims=True)
        if any(low < 0 or high < 0 for low, high in sides):
            x = pad(x, [(0, 0), *((min(low, 0), min(high, 0)) for low, high in sides), (0, 0)])
        padding = [(max(low, 0), max(high, 0)) for low, high in sides]
    if count <= 2 and x.dtype.is_float:
        function = conv1d if count == 1 else conv2d
        return function(x, weight, bias, stride, padding, dilation, groups)
    kernel = (*weight.shape[2:], weight.shape[1], weight.shape[0])
    _require_channels("conv", x, weight, bias, groups, kernel)
    windows = windows_of("conv", x, kernel[:-2], stride, padding, dilation)
    require_fit("conv", x, windows)
    return _convolved(x, _outputs_last(weight), bias, windows, groups)


@functional
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    output_padding: Extents = 0,
    dilation: Extents = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv`, its gradient by `x`, as torch's `conv_transpose2d`.

    `out[n, i * stride - low + k * dilation, .., o]` is `bias[o]` plus the sum over all such i and k
    of `x[n, i, .., c] * weight[c, o, k, ..]` (Dumoulin, Visin 2016).

    x [N, spatial.., C], weight [C, O / groups, kernel..] as in torch's checkpoints, bias [O] ->
    [N, out.., O] of one type of numbers, `out = (size - 1) * stride - low - high +
    (kernel - 1) * dilation + output_padding + 1`. `padding` takes that many elements off the
    result, and adds zeros where it is negative; `output_padding` lengthens the high side.

    UsageError for other ranks, element types that differ, channels that do not match or divide,
    and a result without elements.
    """
    count = _require_transposable(x, weight, bias, groups)
    kernel = weight.shape[2:]
    strides = extents("conv_transpose", "stride", stride, count)
    dilations = extents("conv_transpose", "dilation", dilation, count)
    extra = extents("conv_transpose", "output_padding", output_padding, count, least=0)
    cut = sides_of("conv_transpose", padding, count, names="", trims=True)
    reaches = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    apart = kernel == strides == reaches and not any(map(any, [extra, *cut]))
    if groups == 1 and apart:
        return _with_bias(_side_by_side(x, weight), bias)
    if any(step > 1 for step in strides):
        none = [0] * x.rank
        # The gradient of a strided convolution: zeros between the elements undo the stride, then
        # the reversed kernel runs at stride 1 (Dumoulin and Visin 2016, chapter 4).
        x = primitives.pad(x, none, none, [0, *(step - 1 for step in strides), 0])
    weight = _turned(weight, groups)
    sides = [
        (reach - 1 - low, reach - 1 - high + more)
        for reach, (low, high), more in zip(reaches, cut, extra, strict=True)
    ]
    return conv(x, weight, bias, 1, sides, dilations, groups)


def _require_numbers(name: str, x: Tensor, weight: Tensor) -> int:
    """Return the number of spatial axes of operands that have one type and rank."""
    require_dtype(name, NUMBERS, x=x, weight=weight)
    require_same_dtype(name, x, weight)
    if x.rank < 3 or x.rank != weight.rank:
        raise UsageError(
            f"`{name}` needs `x` [N, spatial.., C] and `weight` of its rank, got `{x.type}` and"
            f" `{weight.type}`"
        )
    return x.rank - 2


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Rearrange [C, O / groups, kernel..] to [O, C / groups, kernel..] with reversed windows."""
    channels, outputs, *kernel = weight.shape
    split = primitives.reshape(weight, (groups, channels // groups, outputs, *kernel))
    order = (0, 2, 1, *range(3, split.rank))
    turned = flip(primitives.transpose(split, order), list(range(3, split.rank)))
    return primitives.reshape(turned, (groups * outputs, channels // groups, *kernel))


def _require_transposable(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> int:
    """Return the number of spatial axes of operands that `conv_transpose` takes."""
    count = _require_numbers("conv_transpose", x, weight)
    channels, outputs = weight.shape[:2]
    if groups < 1 or x.shape[-1] != channels or channels % groups:
        raise UsageError(
            f"`conv_transpose` of `{x.type}` with groups={groups} needs a `weight`"
            f" [C, O / groups, kernel..] with `groups` that divide C, got `{weight.type}`"
        )
    if bias is not None:
        require_same_dtype("conv_transpose", x, bias)
        require_shape("conv_transpose", "bias", bias, (groups * outputs,))
    return count


def _side_by_side(x: Tensor, weight: Tensor) -> Tensor:
    """Return a transposed convolution with disjoint windows: one product, rearranged."""
    inputs, outputs, *kernel = weight.shape
    count, sizes = len(kernel), x.shape[1:-1]
    turned = primitives.transpose(weight, (0, *range(2, weight.rank), 1))
    matrix = primitives.reshape(turned, (inputs, math.prod(kernel) * outputs))
    # Windows do not overlap, so no sums are needed: each element yields its own block of the
    # result.
    made = primitives.dot_general(x, matrix, ([-1], [0]))
    split = primitives.reshape(made, (x.shape[0], *sizes, *kernel, outputs))
    pairs = [axis for i in range(1, count + 1) for axis in (i, i + count)]
    apart = primitives.transpose(split, (0, *pairs, 2 * count + 1))
    dims = [size * step for size, step in zip(sizes, kernel, strict=True)]
    return primitives.reshape(apart, (x.shape[0], *dims, outputs))


def _kernel_shape(
    name: str, x: Tensor, weight: Tensor, layout: str, spatial_first: str
) -> tuple[int, ...]:
    """Return the dims of the weight as (spatial.., inputs, outputs)."""
    outputs_first = f"oi{spatial_first[:-2]}"
    require_one_of(name, "layout", layout, (outputs_first, spatial_first))
    require_float(name, x=x, weight=weight)
    require_same_dtype(name, x, weight)
    rank = len(layout)
    if x.rank != rank or weight.rank != rank:
        form = ", ".join(["N", *spatial_first[:-2].upper(), "C"])
        raise UsageError(
            f"`{name}` needs `x` of rank {rank} [{form}] and `weight` of rank {rank} ({layout}),"
            f" got `{x.type}` and `{weight.type}`"
        )
    return tuple(weight.shape[layout.index(axis)] for axis in spatial_first)


def _require_channels(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    kernel: tuple[int, ...],
) -> None:
    channels, outputs = x.shape[-1], kernel[-1]
    if groups < 1 or channels % groups or outputs % groups:
        raise UsageError(
            f"`{name}` needs `groups` that divide the {channels} channels of `x` and the {outputs}"
            f" of the result, got {groups}"
        )
    if kernel[-2] != channels // groups:
        raise UsageError(
            f"`{name}` of `{x.type}` with groups={groups} needs a `weight` for"
            f" {channels // groups} channels, got `{weight.type}`, which is for {kernel[-2]}"
        )
    if bias is not None:
        require_same_dtype(name, x, bias)
        require_shape(name, "bias", bias, (outputs,))


def _spatial_first(weight: Tensor, layout: str, spatial_first: str) -> Tensor:
    """Return the weight as [spatial.., inputs, outputs]."""
    if layout == spatial_first:
        return weight
    return primitives.transpose(weight, [layout.index(axis) for axis in spatial_first])


def _outputs_last(weight: Tensor) -> Tensor:
    """Return the weight [O, I, spatial..] as [spatial.., I, O]."""
    return primitives.transpose(weight, (*range(2, weight.rank), 1, 0))


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows, groups: int
) -> Tensor:
    """Return the windows of `x` times `weight` [spatial.., C / groups, O], plus `bias`."""
    if groups > 1:
        return _with_bias(_grouped(x, weight, windows, groups), bias)
    patches = _patches(x, windows)
    matrix = primitives.reshape(weight, (math.prod(weight.shape[:-1]), weight.shape[-1]))
    return _with_bias(primitives.dot_general(patches, matrix, ([-1], [0])), bias)


def _grouped(x: Tensor, weight: Tensor, windows: Windows, groups: int) -> Tensor:
    """Return the windows of each group of channels times its part of `weight`.

    Groups are split off before windows are taken: then each window is one row of a matrix.
    """
    *spatial, inputs, outputs = weight.shape
    depth, batch = math.prod(spatial) * inputs, x.shape[0]
    split = primitives.reshape(x, (*x.shape[:-1], groups, inputs))
    split = primitives.transpose(split, (x.rank - 1, *range(x.rank - 1), x.rank))
    patches = _patches(primitives.reshape(split, (groups * batch, *split.shape[2:])), windows)
    lead = (batch, *patches.shape[1:-1])
    rows = primitives.reshape(patches, (groups, *lead, depth))
    matrices = primitives.reshape(weight, (depth, groups, outputs // groups))
    products = primitives.dot_general(rows, matrices, ([-1], [0]), ([0], [1]))
    axes = range(1, len(lead) + 1)
    # The batch axis of a product comes first; channels of the result need the groups last.
    products = primitives.transpose(products, (*axes, 0, -1))  # (N, positions.., groups, O / g)
    return primitives.reshape(products, (*lead, outputs))


def _depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> Tensor:
    """Return the windows of each channel times its kernels: a product and a sum, no matrices.

    `weight` has the elements of [spatial.., C, M] in this order. Products of 8- and 16-bit floats
    are computed in f32, as in `dot_general`.
    """
    wide = x.dtype.accumulator
    if wide is not x.dtype:
        weight = primitives.cast(weight, wide)
    patches = _patches(x if wide is x.dtype else primitives.cast(x, wide), windows)
    lead, channels = patches.shape[:-1], x.shape[-1]
    size = math.prod(axis.size for axis in windows)
    multiplier = weight.type.size // max(size * channels, 1)
    shape = (*lead, size, channels, multiplier)
    boxes = expand(primitives.reshape(patches, (*shape[:-1], 1)), shape)
    kernels = expand(primitives.reshape(weight, shape[-3:]), shape)
    out_dtype = None if wide is x.dtype else x.dtype
    sums = primitives.reduce(primitives.mul(boxes, kernels), "sum", [-3], out_dtype=out_dtype)
    return _with_bias(primitives.reshape(sums, (*lead, channels * multiplier)), bias)


def _patches(x: Tensor, windows: Windows) -> Tensor:
    """[N, positions.., K * C]: the windows side by side; `x` itself if each window is one
    element."""
    strides = [axis.stride for axis in windows]
    if any(axis.size > 1 or axis.low or axis.high for axis in windows):
        return primitives.extract_patches(
            x,
            [axis.size for axis in windows],
            strides,
            [(axis.low, axis.high) for axis in windows],
            [axis.dilation for axis in windows],
        )
    # Pointwise convolutions read `x` itself.
    if set(strides) == {1}:
        return x
    sizes = (x.shape[0], *(axis.positions for axis in windows), x.shape[-1])
    return primitives.slice(x, (0,) * x.rank, sizes, (1, *strides, 1))


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else primitives.add(x, expand(bias, x.shape))
