"""Reading and writing at places that tensors name."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, as_tensor, sizes

ScatterKind = Literal["add", "mul", "max", "min", "replace"]
_KINDS: dict[str, ScatterKind] = {
    "none": "replace",
    "add": "add",
    "mul": "mul",
    "max": "max",
    "min": "min",
}


def counted_from_start(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the start; negative ones count from the end.

    One before the start stays as it is, so that the error of the program names it.
    """
    whole = F.cast(indices, dtypes.si64)
    moved = whole + as_tensor(sizes([size]).reshape(()))
    return F.where(F.logical_and(whole < 0, moved >= 0), moved, whole)


@converts("Gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Return the slices of x at `indices` along an axis, whose place their dims take."""
    axis = node.integer("axis", 0) % x.rank
    return F.take(x, counted_from_start(indices, x.shape[axis]), axis)


@converts("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Return elements of x at places of their own along an axis."""
    axis = node.integer("axis", 0) % x.rank
    return F.gather(x, counted_from_start(indices, x.shape[axis]), axis)


@converts("Scatter", "ScatterElements")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Return x with updates put, or reduced, at places along an axis."""
    axis = node.integer("axis", 0) % x.rank
    kind = _kind(node)
    return F.scatter(x, counted_from_start(indices, x.shape[axis]), updates, axis, kind)


def _kind(node: Node) -> ScatterKind:
    name = node.text("reduction", "none")
    if name not in _KINDS:
        node.refuse(f"has the reduction {name!a}")
    return _KINDS[name]


@converts("GatherND")
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Return slices of x at places of several axes, after axes that both share."""
    batch = node.integer("batch_dims", 0)
    depth = indices.shape[-1]
    lead = x.shape[:batch]
    flat_x = F.reshape(x, [math.prod(lead), *x.shape[batch:]])
    places = indices.shape[batch:-1]
    flat = F.reshape(indices, [math.prod(lead), math.prod(places), depth])
    rows = _flat_indices(flat, flat_x.shape[1 : 1 + depth])
    if batch:
        inside = math.prod(flat_x.shape[1 : 1 + depth])
        rows = rows + F.expand_dims(
            F.arange(flat_x.shape[0]) * as_tensor(sizes([inside]).reshape(())), 1
        )
    rest = flat_x.shape[1 + depth :]
    table = F.reshape(flat_x, [math.prod(flat_x.shape[: 1 + depth]), *rest])
    found = F.take(table, F.reshape(rows, [math.prod(rows.shape)]), 0)
    return F.reshape(found, [*lead, *places, *rest])


def _flat_indices(indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return places of several axes, the last of `indices`, as numbers in row-major order."""
    total: Tensor | None = None
    for axis, size in enumerate(shape):
        column = F.squeeze(F.slice_axis(indices, -1 % indices.rank, axis, 1), -1)
        place = counted_from_start(column, size)
        if len(shape) > 1:
            place = _checked(place, size)
        total = place if total is None else total * as_tensor(sizes([size]).reshape(())) + place
    if total is None:
        return F.zeros(indices.shape[:-1], dtypes.si64)
    return total


def _checked(place: Tensor, size: int) -> Tensor:
    """Return places as they are; one outside the axis becomes one that no table has."""
    inside = F.logical_and(place >= 0, place < as_tensor(sizes([size]).reshape(())))
    return F.where(inside, place, -(2**40))


@converts("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Return x with slices put, or reduced, at places of several axes."""
    depth = indices.shape[-1]
    rest = x.shape[depth:]
    count, width = math.prod(indices.shape[:-1]), math.prod(rest)
    rows = _flat_indices(F.reshape(indices, [count, depth]), x.shape[:depth])
    table = F.reshape(x, [math.prod(x.shape[:depth]), width])
    places = F.broadcast_to(F.expand_dims(rows, 1), [count, width])
    written = F.scatter(table, places, F.reshape(updates, [count, width]), 0, _kind(node))
    return F.reshape(written, x.shape)


@converts("TensorScatter")
def tensor_scatter(
    node: Node, cache: Tensor, update: Tensor, starts: Tensor | None = None
) -> Tensor:
    """Return a cache with new positions written from `starts` on, one for each of the batch."""
    axis = node.integer("axis", -2) % cache.rank
    count, size = update.shape[axis], cache.shape[axis]
    steps = F.reshape(F.arange(count), [-1 if i == axis else 1 for i in range(cache.rank)])
    if starts is not None:
        steps = steps + F.reshape(F.cast(starts, dtypes.si64), [-1, *[1] * (cache.rank - 1)])
    if node.text("mode", "linear") == "circular":
        steps = F.remainder(steps, size)
    return F.scatter(cache, F.broadcast_to(steps, update.shape), update, axis)


@converts("Compress", known=[1])
def compress(node: Node, x: Tensor, condition: Known) -> Tensor:
    """Return the slices of x where a known condition holds."""
    kept = condition.nonzero()[0]
    if "axis" not in node:
        x, axis = F.reshape(x, [math.prod(x.shape)]), 0
    else:
        axis = node.integer("axis") % x.rank
    return F.take(x, primitives.constant(kept), axis)


@converts("NonZero", known=[0])
def non_zero(node: Node, x: Known) -> Tensor:
    """Return the places where known elements are not 0 [rank, count]."""
    del node
    return primitives.constant(_stacked(x))


def _stacked(x: Known) -> Known:
    return (
        np.stack(np.nonzero(x)).astype(np.int64) if x.ndim else np.zeros((0, int(x != 0)), np.int64)
    )


@converts("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Return columns of x."""
    del node
    found = F.take(x, F.reshape(indices, [math.prod(indices.shape)]), x.rank - 1)
    return F.expand_dims(found, 0) if x.rank == 1 else found
