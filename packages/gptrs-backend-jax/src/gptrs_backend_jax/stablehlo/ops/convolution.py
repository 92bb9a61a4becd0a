"""Convolutions over any number of spatial axes, in any layout, with gaps, groups and strides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.api import Tensor, primitives
from gptrs.api import functionals as F
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.contraction import product
from gptrs_backend_jax.stablehlo.ops.conversion_of_types import converted
from gptrs_backend_jax.stablehlo.ops.layout import static_shape
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import scalar

Pads = Sequence[tuple[int, int]]


@converts("convolution")
def convolution(node: Node, x: Tensor, kernel: Tensor) -> Tensor:
    """Return a cross-correlation: arranged channels last, computed, and arranged as asked for."""
    numbers = node.numbers("dimension_numbers")
    spatial = len(numbers["input_spatial_dimensions"])
    kernel_axes = ["kernel_output_feature_dimension", "kernel_input_feature_dimension"]
    arranged = _arranged(
        x, numbers, ["input_batch_dimension", "input_spatial_dimensions", "input_feature_dimension"]
    )
    weight = _arranged(kernel, numbers, [*kernel_axes, "kernel_spatial_dimensions"])
    reversal = node.operation.attributes.get("window_reversal")
    turned = [axis + 2 for axis, yes in enumerate(_flags(reversal, spatial)) if yes]
    weight = primitives.reverse(weight, turned) if turned else weight
    if node.dtype is not x.dtype:
        arranged, weight = converted(arranged, node.dtype), converted(weight, node.dtype)
    ones = [1] * spatial
    groups = node.attribute("feature_group_count", int, 1)
    batches = node.attribute("batch_group_count", int, 1)
    if batches > 1:
        arranged, groups = _batches_as_groups(node, arranged, batches, groups), batches
    flat = node.integers("padding", [0, 0] * spatial)
    pads = list(zip(flat[::2], flat[1::2], strict=True))
    arranged, pads = _trimmed(arranged, pads, node.integers("lhs_dilation", ones))
    steps, gaps = node.integers("window_strides", ones), node.integers("rhs_dilation", ones)
    made = _convolved(node, arranged, weight, steps, pads, gaps, groups)
    places = [
        *numbers["output_batch_dimension"],
        *numbers["output_spatial_dimensions"],
        *numbers["output_feature_dimension"],
    ]
    return primitives.transpose(made, [places.index(axis) for axis in range(made.rank)])


def _flags(held: object, count: int) -> list[bool]:
    return [bool(each) for each in held] if isinstance(held, list) else [False] * count  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _arranged(x: Tensor, numbers: dict[str, list[int]], names: Sequence[str]) -> Tensor:
    return primitives.transpose(x, [axis for name in names for axis in numbers[name]])


def _batches_as_groups(node: Node, x: Tensor, batches: int, groups: int) -> Tensor:
    """Return x [G * N, spatial.., C] as [N, spatial.., G * C]: groups of texts become channels."""
    if groups != 1:
        raise node.error("has groups of features and of batches")
    count, *dims = x.shape
    parts = primitives.reshape(x, [batches, count // batches, *dims])
    order = [1, *range(2, x.rank), 0, x.rank]
    *lead, _, channels = primitives.transpose(parts, order).shape
    return primitives.reshape(primitives.transpose(parts, order), [*lead, batches * channels])


def _trimmed(x: Tensor, pads: Pads, gaps: Sequence[int]) -> tuple[Tensor, Pads]:
    """Return x with zeros between its elements, trimmed where padding is negative, and the rest."""
    low = [0, *(min(first, 0) for first, _ in pads), 0]
    high = [0, *(min(last, 0) for _, last in pads), 0]
    interior = [0, *(gap - 1 for gap in gaps), 0]
    if any(low) or any(high) or any(interior):
        x = primitives.pad(x, low, high, interior)
    return x, [(max(first, 0), max(last, 0)) for first, last in pads]


def _convolved(
    node: Node,
    x: Tensor,
    weight: Tensor,
    steps: Sequence[int],
    pads: Pads,
    gaps: Sequence[int],
    groups: int,
) -> Tensor:
    """Return the convolution of x [N, spatial.., C] by weight [O, C / groups, kernel..]."""
    spatial = x.rank - 2
    if 0 in (node.type.shape or ()):
        return _empty(node, x, weight)
    if spatial in (1, 2) and x.dtype.is_float:
        function = F.conv1d if spatial == 1 else F.conv2d
        sides, strides, dilation = tuple(pads), tuple(steps), tuple(gaps)
        if spatial == 1:
            return F.conv1d(x, weight, None, strides[0], sides, dilation[0], groups)
        return function(x, weight, None, strides, sides, dilation, groups)
    return _by_patches(x, weight, steps, pads, gaps, groups)


def _empty(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    numbers = node.numbers("dimension_numbers")
    shape = static_shape(node)
    sizes = [shape[axis] for axis in numbers["output_spatial_dimensions"]]
    dims = [x.shape[0], *sizes, weight.shape[0]]
    return primitives.broadcast_to(scalar(0, x.dtype), dims)


def _by_patches(
    x: Tensor,
    weight: Tensor,
    steps: Sequence[int],
    pads: Pads,
    gaps: Sequence[int],
    groups: int,
) -> Tensor:
    """Return windows of x side by side, times the weight as a matrix."""
    window = weight.shape[2:]
    patches = primitives.extract_patches(x, window, steps, pads, gaps)
    outputs, inputs = weight.shape[:2]
    size, last = math.prod(window), patches.rank - 1
    turned = primitives.transpose(weight, [*range(2, weight.rank), 1, 0])
    if groups == 1:
        matrix = primitives.reshape(turned, [size * inputs, outputs])
        return product(patches, matrix, ([last], [0]), ([], []), x.dtype)
    lead = patches.shape[:-1]
    boxes = primitives.reshape(patches, [math.prod(lead), size, groups, inputs])
    matrices = primitives.reshape(turned, [size, inputs, groups, outputs // groups])
    products = product(boxes, matrices, ([1, 3], [0, 1]), ([2], [2]), x.dtype)
    return primitives.reshape(primitives.transpose(products, [1, 0, 2]), [*lead, outputs])
