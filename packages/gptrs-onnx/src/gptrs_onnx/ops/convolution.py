"""Convolutions over any number of spatial axes, and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as combinations

import numpy as np

from gptrs.api.importers import real_signal, transformed
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Known, Node, Sizes, constant, converts, numbers
from gptrs_onnx.ops.pooling import (
    Geometry,
    channels_first,
    channels_last,
    geometry_of,
    split_padding,
)
from gptrs_onnx.ops.resize import read_places, taps_of


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


def convolved_integers(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    """Return `convolved` of si32 that are differences of 8-bit codes.

    Groups of channels are convolved in f32 where no sum exceeds 2^24: that is exact, and backends
    have kernels for groups of floats.
    """
    depth = math.prod(weight.shape[1:])
    if node.integer("group", 1) == 1 or depth * 255 * 255 >= 1 << 24:
        return convolved(node, x, weight)
    made = convolved(node, F.cast(x, dtypes.f32), F.cast(weight, dtypes.f32))
    return F.cast(made, dtypes.si32)


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
    """Return the elements that `output_padding` adds at the ends, and those cut off both sides."""
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
    # May be negative: `output_shape` larger than the windows reach adds zeros.
    totals = [have - want for have, want in zip(full, wanted, strict=True)]
    if automatic == "NOTSET":  # at the end, as ONNX Runtime and the reference of the standard do
        return extra, [
            split_padding(total, "SAME_LOWER") if total > 0 else (0, total) for total in totals
        ]
    return extra, [split_padding(total, automatic) for total in totals]


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
    return convolved_integers(node, left, right)


# Convolutions whose windows bend: each element of a window is read where an offset says.


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


# Fourier transforms.


def _transformed(x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Return the transform of x [.., n, 1 or 2] along its last but one axis [.., bins, 2]."""
    size = x.shape[-2]
    if size < length:
        x = F.pad(x, [*[(0, 0)] * (x.rank - 2), (0, length - size), (0, 0)])
    elif size > length:
        x = F.slice_axis(x, x.rank - 2, 0, length)
    bins = length // 2 + 1 if onesided else length
    real, *imaginary = (F.squeeze(part, -1) for part in F.split(x, x.shape[-1], -1))
    found = transformed(real, imaginary[0] if imaginary else None, bins, inverse)
    made = F.stack(found, -1)
    return made / float(length) if inverse else made


def _real_inverse(x: Tensor, length: int) -> Tensor:
    """Return the real signal [.., length, 1] whose one-sided transform is x [.., bins, 2]."""
    real, imaginary = (F.squeeze(part, -1) for part in F.split(x, 2, -1))
    return F.expand_dims(real_signal(real, imaginary, length) / float(length), -1)


@converts("DFT")
def fourier(
    node: Node,
    x: Tensor,
    length: Sizes | None = None,
    given: Sizes | None = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Tensor:
    """Return the discrete Fourier transform of real or complex signals along an axis."""
    if node.version >= 20:
        axis = -2 if given is None else given[0]
    along, last = axis % x.rank, x.rank - 2
    count = x.shape[along] if length is None else length[0]
    node.require_bounded(count)
    turned = F.swap_axes(x, along, last) if along != last else x
    if inverse and onesided:
        length_of_real = 2 * (count - 1) if length is None else count
        made = _real_inverse(turned, length_of_real)
    else:
        made = _transformed(turned, count, inverse, onesided)
    return F.swap_axes(made, along, last) if along != last else made


@converts("STFT")
def short_time_fourier(
    node: Node,
    x: Tensor,
    step: Known,
    window: Tensor | None = None,
    length: Known | None = None,
    *,
    onesided: bool = True,
) -> Tensor:
    """Return the transforms of frames of a signal, `step` apart [B, frames, bins, 2]."""
    hop = numbers(step)[0]
    signal = x if x.rank == 3 else F.expand_dims(x, -1)
    size = (
        numbers(length)[0] if length is not None else window.shape[0] if window is not None else 0
    )
    if not size:
        node.malformed("has neither a window nor a length of frames")
    # A free length is that of one program: the places are computed.
    starts = F.expand_dims(F.arange((signal.shape[1] - size) // hop + 1) * hop, 1)
    cut = F.take(signal, starts + F.arange(size), 1)
    if window is not None:
        cut = cut * F.expand_dims(window, -1)
    return _transformed(cut, size, False, onesided)
