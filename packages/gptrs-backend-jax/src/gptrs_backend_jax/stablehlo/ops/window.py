"""Reductions of sliding windows (pooling, running totals), convolutions and products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.conversion import Node, Numbers, Value, as_tensor, converts, spread
from gptrs_backend_jax.stablehlo.ops.control_flow import combined_by
from gptrs_backend_jax.stablehlo.ops.elementwise import converted
from gptrs_backend_jax.stablehlo.ops.layout import padded, static_shape
from gptrs_backend_jax.stablehlo.ops.reduction import is_identity

# Convolutions over any number of spatial axes, in any layout, with gaps, groups and strides.


@converts("convolution")
def convolution(node: Node, x: Tensor, kernel: Tensor, *, dimension_numbers: Numbers) -> Tensor:
    """Return a cross-correlation, computed channels last, in the layout of the result."""
    numbers = dimension_numbers
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
    groups = node.integer("feature_group_count", 1)
    batches = node.integer("batch_group_count", 1)
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
        made = _empty(node, numbers, arranged, weight)
    else:
        made = F.conv(arranged, weight, None, steps, pads, gaps, groups)
    axes = [
        *numbers["output_batch_dimension"],
        *numbers["output_spatial_dimensions"],
        *numbers["output_feature_dimension"],
    ]
    return primitives.transpose(made, [axes.index(axis) for axis in range(made.rank)])


def _flags(held: object, count: int) -> list[bool]:
    return [bool(each) for each in held] if isinstance(held, list) else [False] * count  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _arranged(x: Tensor, numbers: Numbers, names: Sequence[str]) -> Tensor:
    return primitives.transpose(x, [axis for name in names for axis in numbers[name]])


def _batches_as_groups(node: Node, x: Tensor, batches: int, groups: int) -> Tensor:
    """Return x [G * N, spatial.., C] as [N, spatial.., G * C]: batch groups become channels."""
    if groups != 1:
        node.refuse("has groups of features and of batches")
    count, *dims = x.shape
    parts = primitives.reshape(x, [batches, count // batches, *dims])
    order = [1, *range(2, x.rank), 0, x.rank]
    *lead, _, channels = primitives.transpose(parts, order).shape
    return primitives.reshape(primitives.transpose(parts, order), [*lead, batches * channels])


def _empty(node: Node, numbers: Numbers, x: Tensor, weight: Tensor) -> Tensor:
    shape = static_shape(node)
    sizes = [shape[axis] for axis in numbers["output_spatial_dimensions"]]
    dims = [x.shape[0], *sizes, weight.shape[0]]
    return primitives.broadcast_to(scalar(0, x.dtype), dims)


MAX_WINDOW: Final = 1024
"""Most elements of a window with a region that is applied one by one."""


class Movement(Struct, frozen=True):
    """The movement of a window, one entry per axis."""

    window: list[int]
    strides: list[int]
    low: list[int]
    high: list[int]
    gaps: list[int]
    """The distance between elements of a window."""
    base: list[int]
    """The distance between elements of the operand, with zeros between them."""


@converts("reduce_window")
def reduce_window(node: Node, *operands: Value) -> list[Tensor]:
    """Combine the elements in each position of a window."""
    count = len(operands) // 2
    inputs = [as_tensor(each) for each in operands[:count]]
    firsts = operands[count:]
    move = movement(node, inputs[0].rank)
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    results: list[Tensor] = []
    for x, kind, first in zip(inputs, kinds, firsts, strict=True):
        plain = kind in ("add", "mul", "max", "min") and not x.dtype.is_bool
        if kind is None or not plain or not is_identity(kind, first, x.dtype):
            return _by_elements(node, inputs, firsts, move)
        results.append(_reduced(x, kind, first, move))
    return results


def movement(node: Node, rank: int) -> Movement:
    """Return the movement of an operation's window over an operand of this rank."""
    ones = [1] * rank
    padding = node.integers("padding", [0, 0] * rank)
    return Movement(
        node.integers("window_dimensions"),
        node.integers("window_strides", ones),
        padding[::2],
        padding[1::2],
        node.integers("window_dilations", ones),
        node.integers("base_dilations", ones),
    )


def _reduced(x: Tensor, kind: str, first: Value, move: Movement) -> Tensor:
    totals = _running(x, kind, move)
    if totals is not None:
        return totals
    low, high = ([min(each, 0) for each in sides] for sides in (move.low, move.high))
    trimmed = padded(x, first, low, high, [step - 1 for step in move.base])
    pads = [(max(a, 0), max(b, 0)) for a, b in zip(move.low, move.high, strict=True)]
    return primitives.reduce_window(
        trimmed, _window_kind(kind), move.window, move.strides, pads, move.gaps
    )


def _window_kind(kind: str) -> primitives.WindowKind:
    match kind:
        case "add":
            return "sum"
        case "mul":
            return "prod"
        case "max":
            return "max"
        case _:
            return "min"


def _running(x: Tensor, kind: str, move: Movement) -> Tensor | None:
    """Return running totals along an axis, which JAX expresses as a window over the whole axis."""
    wide = [axis for axis, size in enumerate(move.window) if size != 1]
    ones = [1] * x.rank
    if len(wide) != 1 or move.strides != ones or move.gaps != ones or move.base != ones:
        return None
    (axis,) = wide
    reach = move.window[axis] - 1
    sides = (move.low[axis], move.high[axis])
    if isinstance(x.shape[axis], SymbolicDim) or reach + 1 < x.shape[axis]:
        return None
    others = [a for a in range(x.rank) if a != axis]
    if any(move.low[a] or move.high[a] for a in others) or sides not in ((reach, 0), (0, reach)):
        return None
    return primitives.cumulative(x, _window_kind(kind), axis, reverse=sides == (0, reach))


def _by_elements(
    node: Node, inputs: Sequence[Tensor], firsts: Sequence[Value], move: Movement
) -> list[Tensor]:
    """Reduce windows by any region, applied to one offset in the window after another."""
    size = math.prod(move.window)
    if size > MAX_WINDOW:
        node.refuse(f"combines {size} elements by a region that has no op in PTIR")
    wide = [
        padded(x, first, move.low, move.high, [step - 1 for step in move.base])
        for x, first in zip(inputs, firsts, strict=True)
    ]
    dims = [
        max((dim - ((w - 1) * gap + 1)) // step + 1, 0)
        for dim, w, gap, step in zip(
            wide[0].shape, move.window, move.gaps, move.strides, strict=True
        )
    ]
    totals = [spread(as_tensor(each), dims) for each in firsts]
    if 0 in dims:
        return totals
    for offset in itertools.product(*map(range, move.window)):
        starts = [index * gap for index, gap in zip(offset, move.gaps, strict=True)]
        parts = [primitives.slice(x, starts, dims, move.strides) for x in wide]
        totals = list(node.lifted(0, [*totals, *parts], dims))
    return totals


# Sums of products.


@converts("dot_general")
def dot_general(node: Node, lhs: Tensor, rhs: Tensor, *, dot_dimension_numbers: Numbers) -> Tensor:
    """Return a general dot product, converted to the type of the result."""
    axes = dot_dimension_numbers
    contract = axes["lhs_contracting_dimensions"], axes["rhs_contracting_dimensions"]
    batch = axes["lhs_batching_dimensions"], axes["rhs_batching_dimensions"]
    return product(lhs, rhs, contract, batch, node.dtype)


def product(
    lhs: Tensor,
    rhs: Tensor,
    contract: tuple[list[int], list[int]],
    batch: tuple[list[int], list[int]],
    result: DType,
) -> Tensor:
    """Return a contraction in type `result`: operands are converted to it, sums are kept in it."""
    if lhs.dtype is not rhs.dtype:
        lhs, rhs = converted(lhs, result), converted(rhs, result)
    if lhs.dtype is result:
        return primitives.dot_general(lhs, rhs, contract, batch)
    if lhs.dtype.kind == result.kind and result.bits >= lhs.dtype.bits:
        total = result if result.is_integer or result.bits >= 32 else None
        return primitives.dot_general(lhs, rhs, contract, batch, total, result)
    if lhs.dtype.is_integer or result is dtypes.f64:
        lhs, rhs = converted(lhs, result), converted(rhs, result)
        return primitives.dot_general(lhs, rhs, contract, batch)
    return converted(primitives.dot_general(lhs, rhs, contract, batch), result)


@converts("dot")
def dot(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the product of vectors and matrices."""
    return product(lhs, rhs, ([lhs.rank - 1], [0]), ([], []), node.dtype)
