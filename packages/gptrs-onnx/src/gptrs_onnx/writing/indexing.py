"""Writers of ops that read or write at positions given by another tensor.

PTIR raises an error for a position outside; a runtime of ONNX counts negative ones from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.api.programs import Op, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.creation import counted
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.reduction import combining_dtype, identity
from gptrs_onnx.writing.registry import writes

ops = op_modules.indexing
_COMBINED: Final = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def _positions(w: GraphWriter, indices: Ref) -> Ref:
    """Return indices as si64, unless they are si32 already."""
    return indices if indices.dtype is dtypes.si32 else w.cast(indices, dtypes.si64)


@writes(ops.Take)
def take(w: GraphWriter, op: Op, x: Ref, indices: Ref) -> Ref:
    """Write rows by number."""
    del op
    shape = (*indices.shape, *x.shape[1:])
    return w.node("Gather", x, _positions(w, indices), shape=shape, axis=0)


@writes(ops.Gather)
def gather(w: GraphWriter, op: ops.Gather, x: Ref, indices: Ref) -> Ref:
    """Write elements by index along an axis."""
    places = _positions(w, indices)
    return w.node("GatherElements", x, places, shape=indices.shape, axis=op.axis)


@writes(ops.DynamicSlice)
def dynamic_slice(w: GraphWriter, op: ops.DynamicSlice, x: Ref, starts: Ref) -> Ref:
    """Write a block by the positions along each axis that is cut, so that its sizes are known."""
    for axis, size in enumerate(op.sizes):
        if size != x.shape[axis]:
            places = _block(w, starts, axis, x.shape[axis], size)
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = w.node("Gather", x, places, shape=shape, axis=axis)
    return x


def _block(w: GraphWriter, starts: Ref, axis: int, dim: int, size: int) -> Ref:
    """Return the positions of a block along an axis, si64[size], its start clamped."""
    wide = w.cast(starts, dtypes.si64)
    start = w.node("Gather", wide, w.vector([axis]), shape=(1,), axis=0)
    if starts.dtype is dtypes.ui64:  # what became negative is beyond the end
        large = w.node("Less", start, w.vector([0]), dtype=dtypes.i1)
        start = w.where(large, w.vector([dim - size]), start)
    start = w.node("Max", w.node("Min", start, w.vector([dim - size])), w.vector([0]))
    return w.node("Add", counted(w, size), start, shape=(size,))


@writes(ops.DynamicUpdateSlice)
def dynamic_update_slice(w: GraphWriter, op: Op, x: Ref, update: Ref, starts: Ref) -> Ref:
    """Write a replaced block: rows of the axes up to the last one that is cut."""
    del op
    cut = [axis for axis in range(x.rank) if update.shape[axis] != x.shape[axis]]
    if not cut:
        return w.node("Identity", update)
    if 0 in update.shape:
        return w.node("Identity", x)
    depth = cut[-1] + 1
    grid = update.shape[:depth]
    columns: list[Ref] = []
    for axis in range(depth):
        places = _block(w, starts, axis, x.shape[axis], update.shape[axis])
        aligned = w.reshape(
            places, [update.shape[axis] if place == axis else 1 for place in range(depth + 1)]
        )
        columns.append(w.expand(aligned, (*grid, 1)))
    indices = columns[0]
    if depth > 1:
        indices = w.node("Concat", *columns, shape=(*grid, depth), axis=depth)
    return w.node("ScatterND", x, indices, update)


@writes(ops.ScatterReduce)
def scatter_reduce(
    w: GraphWriter, op: ops.ScatterReduce, x: Ref, indices: Ref, updates: Ref
) -> Ref:
    """Write updates combined into elements."""
    return _scattered(w, x, indices, updates, op.axis, op.kind)


def _scattered(w: GraphWriter, x: Ref, indices: Ref, updates: Ref, axis: int, kind: str) -> Ref:
    places = _positions(w, indices)
    if kind == "replace":
        return w.node("ScatterElements", x, places, updates, axis=axis)
    if kind in ("max", "min") and x.dtype.is_float:
        w.refuse(f"ONNX does not say what a scattered {kind} makes of NaN")
    wide = combining_dtype("sum" if kind in ("add", "mul") else kind, x.dtype)
    operands = [w.cast(x, wide), places, w.cast(updates, wide)]
    return w.cast(w.node("ScatterElements", *operands, axis=axis, reduction=kind), x.dtype)


@writes(ops.SegmentReduce)
def segment_reduce(w: GraphWriter, op: ops.SegmentReduce, x: Ref, ids: Ref) -> Ref:
    """Write rows combined by id, scattered into identities."""
    start = w.expand(w.scalar(identity(op.kind, x.dtype), x.dtype), (op.num_segments, *x.shape[1:]))
    aligned = w.expand(w.reshape(ids, (*x.shape[:1], *[1] * (x.rank - 1))), x.shape)
    return _scattered(w, start, aligned, x, 0, _COMBINED[op.kind])


def along(w: GraphWriter, x: Ref, axis: int, places: Sequence[Sequence[int]], size: int) -> Ref:
    """Return the elements at known places of an axis, a matrix [positions, size] in its place."""
    flat = w.vector([each for row in places for each in row])
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    # Not by a matrix of indices: ONNX Runtime 1.32 turns transposes of its result round wrongly.
    found = w.node("Gather", x, flat, shape=(*before, *flat.shape, *after), axis=axis)
    return w.reshape(found, (*before, len(places), size, *after))
