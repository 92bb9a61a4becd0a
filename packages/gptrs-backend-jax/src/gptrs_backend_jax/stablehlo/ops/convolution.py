"""Convolutions over any number of spatial axes, in any layout, with gaps, groups and strides."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.conversion_of_types import converted
from gptrs_backend_jax.stablehlo.ops.layout import static_shape
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import scalar


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
    interior = [0, *(gap - 1 for gap in node.integers("lhs_dilation", ones)), 0]
    if any(interior):
        none = [0] * arranged.rank
        arranged = primitives.pad(arranged, none, none, interior)
    steps, gaps = node.integers("window_strides", ones), node.integers("rhs_dilation", ones)
    if 0 in (node.type.shape or ()):
        made = _empty(node, arranged, weight)
    else:
        made = F.conv(arranged, weight, None, steps, pads, gaps, groups)
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


def _empty(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    numbers = node.numbers("dimension_numbers")
    shape = static_shape(node)
    sizes = [shape[axis] for axis in numbers["output_spatial_dimensions"]]
    dims = [x.shape[0], *sizes, weight.shape[0]]
    return primitives.broadcast_to(scalar(0, x.dtype), dims)
