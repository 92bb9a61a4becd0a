"""Scatter: updates combined into windows of a tensor at places that indices give."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import dtypes
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.regions import combined_by
from gptrs_backend_jax.stablehlo.ops.rows import RowLayout, index_vectors, row_numbers
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import filled, size_tensor


@converts("scatter")
def scatter(node: Node, *operands: Tensor) -> list[Tensor]:
    """Return tensors with updates combined in; a window that is not all inside is left out."""
    count = len(operands) // 2
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    kinds = combined_by(node.conversion.module, node.operation.regions[0])
    results: list[Tensor] = []
    for x, update, kind in zip(inputs, updates, kinds, strict=True):
        if kind is None:
            raise node.error("combines elements by a region that is none of PTIR")
        results.append(_scattered(node, x, indices, update, kind))
    return results


def _scattered(node: Node, x: Tensor, indices: Tensor, updates: Tensor, kind: str) -> Tensor:
    if kind == "keep":
        return x
    if kind == "sub":
        updates, kind = primitives.neg(updates), "add"
    if x.dtype.is_bool and kind != "replace":
        if kind not in ("and", "or", "mul", "add", "max", "min"):
            raise node.error(f"combines truth values by `{kind}`")
        is_all = kind in ("and", "mul", "min")
        parts = (primitives.cast(each, dtypes.ui8) for each in (x, updates))
        wide, more = parts
        made = _written(node, wide, indices, more, "min" if is_all else "max")
        return primitives.cast(made, dtypes.i1)
    return _written(node, x, indices, updates, kind)


def _written(node: Node, x: Tensor, indices: Tensor, updates: Tensor, kind: str) -> Tensor:
    """Return x with windows combined into its rows; one row more takes what is outside."""
    numbers = node.numbers("scatter_dimension_numbers")
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
    places = primitives.broadcast_to(numbered, flat.shape)
    match kind:
        case "add" | "mul" | "max" | "min" | "replace":
            written = primitives.scatter_reduce(table, places, flat, 0, kind)
        case _:
            raise node.error(f"combines elements by `{kind}`")
    if inside is not None:
        written = primitives.slice(written, [0] * table.rank, [layout.count, *table.shape[1:]])
    return layout.from_rows(written)


def _layout(
    shape: tuple[int, ...],
    updates: Sequence[int],
    numbers: dict[str, list[int]],
    vector_axis: int,
) -> RowLayout:
    removed, batching = numbers["inserted_window_dims"], numbers["input_batching_dims"]
    window = [1] * len(shape)
    held = [axis for axis in range(len(shape)) if axis not in removed and axis not in batching]
    for axis, place in zip(held, numbers["update_window_dims"], strict=True):
        window[axis] = updates[place]
    places = [axis - (axis > vector_axis) for axis in numbers["scatter_indices_batching_dims"]]
    return RowLayout(
        shape=shape,
        window=tuple(window),
        removed=tuple(removed),
        batching=tuple(zip(batching, places, strict=True)),
        mapped=tuple(numbers["scattered_dims_to_operand_dims"]),
        is_reading=False,
    )
