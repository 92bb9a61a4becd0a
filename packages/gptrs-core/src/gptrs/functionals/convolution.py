"""Convolution over one or two spatial axes, channels last."""

from __future__ import annotations

import math
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.matching.examples import pattern_examples
from gptrs.functionals.operands import (
    expand,
    require_float,
    require_one_of,
    require_same_dtype,
    require_shape,
)
from gptrs.functionals.windows import Extents, Padding, Windows, require_fit, windows_of

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
@functional
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
@functional
def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    layout: Literal["oihw", "hwio"] = "oihw",
) -> Tensor:
    """Each channel convolved with M kernels of its own (Chollet 2016; `conv2d` in C groups).

    `out[n, i, j, c * M + m] = bias[..] + sum_{h, w} x[n, i * stride - low + h * dilation, .., c] *
    weight[c * M + m, 0, h, w]`.

    x [N, H, W, C], weight [C * M, 1, KH, KW] as in torch's checkpoints (or, with `layout="hwio"`,
    [KH, KW, C, M] as in TensorFlow's), bias [C * M] -> [N, OH, OW, C * M], of one float type. The
    other parameters and the errors are those of `conv2d`.
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


@functional
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

    Groups come first, before there are windows: each of these is one row of a matrix then.
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
    places = range(1, len(lead) + 1)
    products = primitives.transpose(products, (*places, 0, -1))  # (N, positions.., groups, O / g)
    return primitives.reshape(products, (*lead, outputs))


def _depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> Tensor:
    """Return the windows of each channel times its kernels: a product and a sum, no matrices.

    `weight` has the elements of [spatial.., C, M] in their order. The products of 8- and 16-bit
    floats are made in f32, as `dot_general` does.
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
    """[N, positions.., K * C]: the windows side by side, `x` itself where they are its elements."""
    strides = [axis.stride for axis in windows]
    if any(axis.size > 1 or axis.low or axis.high for axis in windows):
        return primitives.extract_patches(
            x,
            [axis.size for axis in windows],
            strides,
            [(axis.low, axis.high) for axis in windows],
            [axis.dilation for axis in windows],
        )
    if set(strides) == {1}:
        return x
    sizes = (x.shape[0], *(axis.positions for axis in windows), x.shape[-1])
    return primitives.slice(x, (0,) * x.rank, sizes, (1, *strides, 1))


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else primitives.add(x, expand(bias, x.shape))
