"""Blocks that are read or written at computed indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from gptrs.api.importers import scalar, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import SymbolicDim, dtypes
from gptrs_backend_jax.stablehlo.conversion import (
    Known,
    Node,
    Numbers,
    Sizes,
    Value,
    as_tensor,
    converts,
    filled,
)
from gptrs_backend_jax.stablehlo.ops.control_flow import combined_by
from gptrs_backend_jax.stablehlo.ops.layout import padded
from gptrs_backend_jax.stablehlo.ops.reduction import RowLayout, index_vectors, row_numbers
from gptrs_backend_jax.stablehlo.ops.window import MAX_WINDOW, Movement, movement

# Gather: reads windows of a tensor at indices.


@converts("gather")
def gather(
    x: Tensor, indices: Tensor, *, dimension_numbers: Numbers, slice_sizes: list[int]
) -> Tensor:
    """Return windows; ones that would leave the tensor are moved inside."""
    return gathered(x, indices, slice_sizes, dimension_numbers=dimension_numbers)


@converts("dynamic_gather")
def gathered(x: Tensor, indices: Tensor, sizes: Sizes, *, dimension_numbers: Numbers) -> Tensor:
    """Return windows of symbolic sizes, as one `take` of rows."""
    numbers = dimension_numbers
    (vector_axis,) = numbers["index_vector_dim"]
    batch_axes = [axis - (axis > vector_axis) for axis in numbers["start_indices_batching_dims"]]
    layout = RowLayout(
        shape=x.shape,
        window=tuple(sizes),
        removed=tuple(numbers["collapsed_slice_dims"]),
        batching=tuple(zip(numbers["operand_batching_dims"], batch_axes, strict=True)),
        mapped=tuple(numbers["start_index_map"]),
        is_reading=True,
    )
    vectors = index_vectors(indices, vector_axis)
    rows, _ = row_numbers(layout, vectors)
    taken = primitives.take(layout.as_rows(x), rows)
    # Now [batch.., kept.., whole..]: window axes move to the positions in `offset_dims`.
    held = layout.kept + layout.whole
    offsets = numbers["offset_dims"]
    lead = vectors.rank - 1
    order: list[int] = []
    batch = iter(range(lead))
    axes = iter(sorted(held))
    for axis in range(taken.rank):
        order.append(lead + held.index(next(axes)) if axis in offsets else next(batch))
    return primitives.transpose(taken, order)


@converts("dynamic_slice")
def dynamic_slice(x: Tensor, *starts: Tensor, slice_sizes: list[int]) -> Tensor:
    """Return a block; it is moved inside if it would leave the tensor."""
    return primitives.dynamic_slice(x, _vector(starts), slice_sizes)


@converts("dynamic_update_slice")
def dynamic_update_slice(x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    """Return `x` with a block replaced."""
    return primitives.dynamic_update_slice(x, update, _vector(starts))


def _vector(starts: Sequence[Tensor]) -> Tensor:
    if not starts:
        return primitives.broadcast_to(primitives.constant(0, dtypes.si32), (0,))
    types = {each.dtype for each in starts}
    same = starts if len(types) == 1 else [primitives.cast(each, dtypes.si64) for each in starts]
    return primitives.concat([primitives.reshape(each, (1,)) for each in same], 0)


# Scatter: combines updates into windows of a tensor at indices.


@converts("scatter")
def scatter(node: Node, *operands: Tensor, scatter_dimension_numbers: Numbers) -> list[Tensor]:
    """Combine updates into tensors; windows that are not entirely inside are skipped."""
    count = len(operands) // 2
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    results: list[Tensor] = []
    for x, update, kind in zip(inputs, updates, kinds, strict=True):
        if kind is None:
            node.refuse("combines elements by a region that has no op in PTIR")
        results.append(_scattered(node, scatter_dimension_numbers, x, indices, update, kind))
    return results


def _scattered(
    node: Node, numbers: Numbers, x: Tensor, indices: Tensor, updates: Tensor, kind: str
) -> Tensor:
    if kind == "keep":
        return x
    if kind == "sub":
        updates, kind = primitives.neg(updates), "add"
    if x.dtype.is_bool and kind != "replace":
        if kind not in ("and", "or", "mul", "add", "max", "min"):
            node.refuse(f"combines truth values by `{kind}`")
        is_all = kind in ("and", "mul", "min")
        parts = (primitives.cast(each, dtypes.ui8) for each in (x, updates))
        wide, more = parts
        made = _written(node, numbers, wide, indices, more, "min" if is_all else "max")
        return primitives.cast(made, dtypes.i1)
    return _written(node, numbers, x, indices, updates, kind)


def _written(
    node: Node, numbers: Numbers, x: Tensor, indices: Tensor, updates: Tensor, kind: str
) -> Tensor:
    """Return x with windows combined into its rows; an extra row absorbs the rest."""
    (vector_axis,) = numbers["index_vector_dim"]
    layout = _layout(x.shape, updates.shape, numbers, vector_axis)
    vectors = index_vectors(indices, vector_axis)
    rows, inside = row_numbers(layout, vectors)
    table = layout.as_rows(x)
    if inside is not None:
        beyond = filled(size_tensor(layout.count, rows.dtype), rows)
        rows = primitives.select(inside, rows, beyond)
        table = primitives.pad(table, [0] * table.rank, [1] + [0] * (table.rank - 1))
    held = layout.kept + layout.whole
    windows = numbers["update_window_dims"]
    in_order = sorted(held)
    lead = [axis for axis in range(updates.rank) if axis not in windows]
    order = lead + [windows[in_order.index(axis)] for axis in held]
    arranged = primitives.transpose(updates, order)
    flat = primitives.reshape(arranged, [rows.size, *table.shape[1:]])
    numbered = primitives.reshape(rows, [rows.size, *([1] * (table.rank - 1))])
    targets = primitives.broadcast_to(numbered, flat.shape)
    match kind:
        case "add" | "mul" | "max" | "min" | "replace":
            written = primitives.scatter_reduce(table, targets, flat, 0, kind)
        case _:
            node.refuse(f"combines elements by `{kind}`")
    if inside is not None:
        written = primitives.slice(written, [0] * table.rank, [layout.count, *table.shape[1:]])
    return layout.from_rows(written)


def _layout(
    shape: tuple[int, ...], updates: Sequence[int], numbers: Numbers, vector_axis: int
) -> RowLayout:
    removed, batching = numbers["inserted_window_dims"], numbers["input_batching_dims"]
    window = [1] * len(shape)
    held = [axis for axis in range(len(shape)) if axis not in removed and axis not in batching]
    for axis, axis_of_update in zip(held, numbers["update_window_dims"], strict=True):
        window[axis] = updates[axis_of_update]
    batch_axes = [axis - (axis > vector_axis) for axis in numbers["scatter_indices_batching_dims"]]
    return RowLayout(
        shape=shape,
        window=tuple(window),
        removed=tuple(removed),
        batching=tuple(zip(batching, batch_axes, strict=True)),
        mapped=tuple(numbers["scattered_dims_to_operand_dims"]),
        is_reading=False,
    )


# The gradient of pooling: each window selects an element, which gets its update.


@converts("select_and_scatter")
def select_and_scatter(node: Node, x: Value, updates: Value, first: Value) -> Tensor:
    """Return `first` everywhere, combined with each window's update at its selected element."""
    operand, given = as_tensor(x), as_tensor(updates)
    (kind,) = combined_by(node.conversion.module, node.operation.regions[1])
    if kind not in ("add", "mul", "max", "min") or given.dtype.is_bool or given.dtype.is_complex:
        node.refuse("combines updates by a region that has no op in PTIR")
    chosen = _chosen(node, operand, given.shape, movement(node, operand.rank))
    count = math.prod(operand.shape)
    outside = filled(size_tensor(count, chosen.dtype), chosen)  # windows that lie in the padding
    chosen = primitives.select(primitives.compare(chosen, filled(0, chosen), "lt"), outside, chosen)
    table = primitives.broadcast_to(as_tensor(first), (count + 1,))
    flat = (math.prod(given.shape),)
    rows, values = primitives.reshape(chosen, flat), primitives.reshape(given, flat)
    written = primitives.scatter_reduce(table, rows, values, 0, kind)
    return primitives.reshape(primitives.slice(written, [0], [count]), operand.shape)


def _chosen(node: Node, x: Tensor, windows: tuple[int, ...], move: Movement) -> Tensor:
    """Return the index of the element that each window selects, or -1 if it selects none."""
    size = math.prod(move.window)
    if size > MAX_WINDOW:
        node.refuse(f"chooses among {size} elements")
    gaps = [step - 1 for step in move.base]
    count = math.prod(x.shape)
    is_small = not isinstance(count, SymbolicDim) and count < 2**31
    numbers = dtypes.si32 if is_small else dtypes.si64
    indices = primitives.reshape(primitives.iota((count,), 0, numbers), x.shape)
    none = Known(np.array(-1), numbers)
    values = primitives.pad(x, move.low, move.high, gaps)
    indices = padded(indices, none, move.low, move.high, gaps)
    best: tuple[Tensor, Tensor] | None = None
    for offset in itertools.product(*map(range, move.window)):
        value, number = (
            primitives.slice(each, offset, windows, move.strides) for each in (values, indices)
        )
        best = (value, number) if best is None else _better(node, best, (value, number), windows)
    assert best is not None, "a window has no elements"
    return best[1]


def _better(
    node: Node, best: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], windows: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the pairs that the region keeps; padding never wins against an element."""
    zero = primitives.broadcast_to(scalar(0, best[1].dtype), windows)
    lacks, is_padding = (primitives.compare(each[1], zero, "lt") for each in (best, other))
    (prefers,) = node.lifted(0, [best[0], other[0]], windows)
    kept = primitives.bit_or(is_padding, primitives.bit_and(prefers, primitives.logical_not(lacks)))
    value, number = (primitives.select(kept, a, b) for a, b in zip(best, other, strict=True))
    return value, number
