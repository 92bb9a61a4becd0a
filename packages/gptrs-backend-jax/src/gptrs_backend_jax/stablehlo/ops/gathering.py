"""Gather: windows of a tensor at places that indices give."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.api.models import Tensor, primitives
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.rows import RowLayout, index_vectors, row_numbers
from gptrs_backend_jax.stablehlo.ops.sizes import shape_of
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import Value, as_tensor


@converts("gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Return windows, moved inside where they would leave the tensor."""
    return gathered(node, x, indices, node.integers("slice_sizes"))


@converts("dynamic_gather", knows=True)
def dynamic_gather(node: Node, x: Value, indices: Value, sizes: Value) -> Tensor:
    """Return windows of sizes that are computed of sizes."""
    return gathered(node, as_tensor(x), as_tensor(indices), shape_of(node, sizes))


def gathered(node: Node, x: Tensor, indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return windows of `sizes` as one `take` of rows."""
    numbers = node.numbers("dimension_numbers")
    (vector_axis,) = numbers["index_vector_dim"]
    places = [axis - (axis > vector_axis) for axis in numbers["start_indices_batching_dims"]]
    layout = RowLayout(
        shape=x.shape,
        window=tuple(sizes),
        removed=tuple(numbers["collapsed_slice_dims"]),
        batching=tuple(zip(numbers["operand_batching_dims"], places, strict=True)),
        mapped=tuple(numbers["start_index_map"]),
        is_reading=True,
    )
    vectors = index_vectors(indices, vector_axis)
    rows, _ = row_numbers(layout, vectors)
    taken = primitives.take(layout.as_rows(x), rows)
    # Now [batch.., kept.., whole..]: windows go to the places that the offsets name.
    held = layout.kept + layout.whole
    offsets = numbers["offset_dims"]
    lead = vectors.rank - 1
    order: list[int] = []
    batch = iter(range(lead))
    axes = iter(sorted(held))
    for axis in range(taken.rank):
        order.append(lead + held.index(next(axes)) if axis in offsets else next(batch))
    return primitives.transpose(taken, order)
