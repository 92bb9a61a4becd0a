"""Operations that move elements, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import dtypes
from gptrs_backend_jax.stablehlo.conversion import SMALL, Known, Node, Value, as_tensor, converts
from gptrs_backend_jax.stablehlo.reading.module import ConstantArray
from gptrs_backend_jax.stablehlo.weights import LARGE


@converts("constant")
def constant(node: Node, *, value: ConstantArray) -> Value:
    """Return a constant: a known value if small, a weight if large."""
    dtype, size = value.type.dtype, int(np.prod(value.shape, dtype=np.int64))
    if size <= SMALL:
        return Known(value.whole(), dtype)
    if value.array.ndim == 0:
        return primitives.broadcast_to(primitives.constant(value.array), value.shape)
    if size <= LARGE:
        return primitives.constant(value.array)
    return node.conversion.weight(node.operation.results[0], value)


def static_shape(node: Node) -> tuple[int, ...]:
    """Return the dims of the first result; refuses free ones."""
    shape = node.type.shape
    if shape is None or None in shape:
        node.refuse(f"gives `{node.type}`, whose sizes depend on data")
    return tuple(dim for dim in shape if dim is not None)


@converts("reshape")
def reshape(node: Node, x: Tensor) -> Tensor:
    """Return the elements in another shape."""
    return primitives.reshape(x, static_shape(node))


@converts("transpose")
def transpose(x: Tensor, *, permutation: list[int]) -> Tensor:
    """Return the axes in another order."""
    return primitives.transpose(x, permutation)


@converts("broadcast_in_dim")
def broadcast_in_dim(node: Node, x: Tensor, *, broadcast_dimensions: list[int]) -> Tensor:
    """Return `x` broadcast, its axes at the given positions."""
    return broadcast_axes(x, broadcast_dimensions, static_shape(node))


def broadcast_axes(x: Tensor, axes: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return `x` broadcast to `shape`, with axis i at `axes[i]`."""
    order = sorted(range(x.rank), key=lambda axis: axes[axis])
    turned = x if order == list(range(x.rank)) else primitives.transpose(x, order)
    dims = [1] * len(shape)
    for axis in range(x.rank):
        dims[axes[axis]] = x.shape[axis]
    placed = turned if list(turned.shape) == dims else primitives.reshape(turned, dims)
    return placed if placed.shape == tuple(shape) else primitives.broadcast_to(placed, shape)


@converts("broadcast")
def broadcast(x: Tensor, *, broadcast_sizes: list[int]) -> Tensor:
    """Return `x` repeated along new leading axes."""
    return primitives.broadcast_to(x, [*broadcast_sizes, *x.shape])


@converts("concatenate")
def concatenate(*parts: Tensor, dimension: int) -> Tensor:
    """Concatenate the parts."""
    return parts[0] if len(parts) == 1 else primitives.concat(parts, dimension)


@converts("slice")
def sliced(
    x: Tensor, *, start_indices: list[int], limit_indices: list[int], strides: list[int]
) -> Tensor:
    """Return elements from starts (included) to limits (excluded)."""
    bounds = zip(start_indices, limit_indices, strides, strict=True)
    sizes = [-((start - limit) // step) for start, limit, step in bounds]
    return primitives.slice(x, start_indices, sizes, strides)


@converts("reverse")
def reverse(x: Tensor, *, dimensions: list[int]) -> Tensor:
    """Return the elements in reverse order along some axes."""
    return primitives.reverse(x, sorted(dimensions))


@converts("pad")
def pad(
    x: Tensor,
    value: Value,
    *,
    edge_padding_low: list[int],
    edge_padding_high: list[int],
    interior_padding: list[int],
) -> Tensor:
    """Return `x` with a value around and between its elements; negative sides trim."""
    return padded(x, value, edge_padding_low, edge_padding_high, interior_padding)


def padded(
    x: Tensor, value: Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Tensor:
    """Return `x` padded; a computed value is selected by a padded mask."""
    if not any(low) and not any(high) and not any(interior):
        return x
    if isinstance(value, Known) and not x.dtype.is_complex:
        held = cast("float", value.array.reshape(-1)[0].item())
        if held == held:  # a select keeps the bits of NaN
            return primitives.pad(x, low, high, interior, held)
    spread = primitives.pad(x, low, high, interior)
    inside = primitives.broadcast_to(scalar(True, dtypes.i1), x.shape)
    mask = primitives.pad(inside, low, high, interior)
    return primitives.select(mask, spread, primitives.broadcast_to(as_tensor(value), spread.shape))


@converts("iota")
def iota(node: Node, *, iota_dimension: int) -> Tensor:
    """Return indices along an axis."""
    return indices(static_shape(node), iota_dimension, node)


def indices(shape: Sequence[int], axis: int, node: Node) -> Tensor:
    """Return indices in the type of the result, rounded or wrapped where it cannot hold them."""
    dtype = node.dtype
    if dtype.bits >= 32 and not dtype.is_complex:
        return primitives.iota(shape, axis, dtype)
    return primitives.cast(primitives.iota(shape, axis, dtypes.si64), dtype)
