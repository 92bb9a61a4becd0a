"""Writers of ops that read or write at positions given by another tensor.

PTIR raises an error for a position outside; a runtime of ONNX counts negative ones from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.api.programs import Op, TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.instructions import writes
from gptrs_onnx.writing.reduction import combining_dtype, identity, ordered

# Writers of ops that make a tensor from attributes alone.


creation_ops = op_modules.creation


@writes(creation_ops.Constant)
def constant(w: GraphWriter, op: creation_ops.Constant) -> Ref:
    """Write a constant; one that repeats an element is that element, expanded."""
    shape = op.value.type.shape
    if op.value.splat is not None and op.value.type.size > 1:
        return w.expand(w.constant(op.value.array.reshape(-1)[:1].reshape(())), shape)
    return w.constant(op.value.array)


@writes(creation_ops.Iota)
def iota(w: GraphWriter, op: creation_ops.Iota) -> Ref:
    """Write the index along an axis."""
    size = op.shape[op.axis]
    vector = counted(w, size)
    aligned = w.reshape(vector, [size if axis == op.axis else 1 for axis in range(len(op.shape))])
    return w.cast(w.expand(aligned, op.shape), op.dtype)


def counted(w: GraphWriter, size: int) -> Ref:
    """Return the numbers 0, 1, ... below a size, si64."""
    stop = w.reshape(w.vector([size]), ())
    zero, one = w.scalar(0, dtypes.si64), w.scalar(1, dtypes.si64)
    return w.node("Range", zero, stop, one, type=TensorType(dtypes.si64, (size,)))


indexing_ops = op_modules.indexing
_COMBINED: Final = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def _positions(w: GraphWriter, indices: Ref) -> Ref:
    """Return indices as si64, unless they are si32 already."""
    return indices if indices.dtype is dtypes.si32 else w.cast(indices, dtypes.si64)


@writes(indexing_ops.Take)
def take(w: GraphWriter, op: Op, x: Ref, indices: Ref) -> Ref:
    """Write rows by number."""
    del op
    shape = (*indices.shape, *x.shape[1:])
    return w.node("Gather", x, _positions(w, indices), shape=shape, axis=0)


@writes(indexing_ops.Gather)
def gather(w: GraphWriter, op: indexing_ops.Gather, x: Ref, indices: Ref) -> Ref:
    """Write elements by index along an axis."""
    places = _positions(w, indices)
    return w.node("GatherElements", x, places, shape=indices.shape, axis=op.axis)


@writes(indexing_ops.DynamicSlice)
def dynamic_slice(w: GraphWriter, op: indexing_ops.DynamicSlice, x: Ref, starts: Ref) -> Ref:
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


@writes(indexing_ops.DynamicUpdateSlice)
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


@writes(indexing_ops.ScatterReduce)
def scatter_reduce(
    w: GraphWriter, op: indexing_ops.ScatterReduce, x: Ref, indices: Ref, updates: Ref
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


@writes(indexing_ops.SegmentReduce)
def segment_reduce(w: GraphWriter, op: indexing_ops.SegmentReduce, x: Ref, ids: Ref) -> Ref:
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


# Writers of ops that move elements without computing on them.


layout_ops = op_modules.layout
_BEFORE_ALL: Final = -(2**63)
"""An end of a slice that runs backwards to the first element."""


@writes(layout_ops.Reshape)
def reshape(w: GraphWriter, op: layout_ops.Reshape, x: Ref) -> Ref:
    """Write the elements under another shape."""
    return w.reshape(x, op.infer(x.type).shape)


@writes(layout_ops.Transpose)
def transpose(w: GraphWriter, op: layout_ops.Transpose, x: Ref) -> Ref:
    """Write the axes in another order."""
    return w.transpose(x, op.permutation)


@writes(layout_ops.BroadcastTo)
def broadcast_to(w: GraphWriter, op: layout_ops.BroadcastTo, x: Ref) -> Ref:
    """Write repeated elements."""
    return w.expand(x, op.shape)


@writes(layout_ops.Slice)
def slice_(w: GraphWriter, op: layout_ops.Slice, x: Ref) -> Ref:
    """Write a block, in steps."""
    return sliced(w, x, op.starts, op.sizes, op.steps(x.rank))


def sliced(
    w: GraphWriter,
    x: Ref,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> Ref:
    """Return `sizes` elements from `starts` on, in steps."""
    strides = [1] * x.rank if steps is None else list(steps)
    cut = [
        axis
        for axis in range(x.rank)
        if not (starts[axis] == 0 and strides[axis] == 1 and sizes[axis] == x.shape[axis])
    ]
    if not cut:
        return x
    ends = [
        starts[axis] + (sizes[axis] - 1) * strides[axis] + 1 if sizes[axis] != 0 else starts[axis]
        for axis in cut
    ]
    bounds = [[starts[axis] for axis in cut], ends, cut, [strides[axis] for axis in cut]]
    return w.node("Slice", x, *(w.vector(each) for each in bounds), shape=sizes)


@writes(layout_ops.Concat)
def concat(w: GraphWriter, op: layout_ops.Concat, *parts: Ref) -> Ref:
    """Write tensors one after another."""
    shape = op.infer(*(part.type for part in parts)).shape
    return w.node("Concat", *parts, shape=shape, axis=op.axis)


@writes(layout_ops.Pad)
def pad(w: GraphWriter, op: layout_ops.Pad, x: Ref) -> Ref:
    """Write values between the elements and around them, or elements trimmed from the ends."""
    value = None if op.value is None else w.constant(op.value.array)
    for axis, between in enumerate(op.between(x.rank)):
        if between and x.shape[axis] not in (0, 1):
            x = _spread(w, x, axis, between, value)
    return padded(w, x, list(zip(op.low, op.high, strict=True)), value)


def padded(
    w: GraphWriter, x: Ref, sides: Sequence[tuple[int, int]], value: Ref | None = None
) -> Ref:
    """Return `x` with `value`, or zeros, before and after; negative widths take elements away."""
    starts, sizes = [0] * x.rank, list(x.shape)
    widths: list[tuple[int, int]] = []
    for axis, (low, high) in enumerate(sides):
        size = x.shape[axis]
        if low >= 0 and high >= 0:
            widths.append((low, high))
            continue
        total = low + size + high
        first = min(max(-low, 0), size)
        last = max(size + min(high, 0), first)
        starts[axis], sizes[axis] = first, last - first
        before = min(max(low, 0), total)
        widths.append((before, total - before - sizes[axis]))
    kept = sliced(w, x, starts, sizes)
    return _surrounded(w, kept, widths, value)


def _surrounded(
    w: GraphWriter, x: Ref, widths: Sequence[tuple[int, int]], value: Ref | None
) -> Ref:
    """Return `x` with values around it."""
    axes = [axis for axis, (low, high) in enumerate(widths) if low or high]
    if not axes:
        return x
    shape = [low + size + high for size, (low, high) in zip(x.shape, widths, strict=True)]
    pads = [widths[axis][side] for side in (0, 1) for axis in axes]
    filler = value if value is not None else w.scalar(0, x.dtype)
    return w.node("Pad", x, w.vector(pads), filler, w.vector(axes), shape=shape)


def _spread(w: GraphWriter, x: Ref, axis: int, between: int, value: Ref | None) -> Ref:
    """Return `x` with values between neighbours: a row of values after each, but for the last."""
    size, (before, after) = x.shape[axis], (x.shape[:axis], x.shape[axis + 1 :])
    rows = w.reshape(x, (*before, size, 1, *after))
    sides = [(0, between if place == axis + 1 else 0) for place in range(rows.rank)]
    rows = _surrounded(w, rows, sides, value)
    merged = w.reshape(rows, (*before, size * (between + 1), *after))
    return sliced(w, merged, [0] * x.rank, (*before, size * (between + 1) - between, *after))


@writes(layout_ops.Tile)
def tile(w: GraphWriter, op: layout_ops.Tile, x: Ref) -> Ref:
    """Write a tensor side by side with itself."""
    type_ = op.infer(x.type)
    return w.node("Tile", x, w.vector(op.repeats), type=type_) if op.repeats else x


@writes(layout_ops.Reverse)
def reverse(w: GraphWriter, op: layout_ops.Reverse, x: Ref) -> Ref:
    """Write the elements in reverse order along axes."""
    return reversed_along(w, x, op.axes)


def reversed_along(w: GraphWriter, x: Ref, axes: Sequence[int]) -> Ref:
    """Return the elements in reverse order along axes."""
    if not axes:
        return x
    count = len(axes)
    bounds = ([-1] * count, [_BEFORE_ALL] * count, list(axes), [-1] * count)
    return w.node(
        "Slice", x, *(w.vector(each) for each in bounds), type=TensorType(x.dtype, x.shape)
    )


# Writers of ops that put elements in order.


sorting_ops = op_modules.sorting


@writes(sorting_ops.Sort)
def sort(w: GraphWriter, op: sorting_ops.Sort, x: Ref, *more: Ref) -> list[Ref]:
    """Write a stable sort: all positions in order, and what is there."""
    places = _order(w, x, op.axis, op.descending)
    return [w.node("GatherElements", each, places, axis=op.axis) for each in (x, *more)]


@writes(sorting_ops.TopK)
def top_k(w: GraphWriter, op: sorting_ops.TopK, x: Ref) -> list[Ref]:
    """Write the beginning of a sort; without NaN, so that of integers, by `TopK` alone."""
    values, indices = op.infer(x.type)
    if x.dtype.is_float:
        places = sliced(w, _order(w, x, op.axis, op.largest), [0] * x.rank, values.shape)
    else:
        places = _top(w, x, op.k, op.axis, op.largest)
    return [
        w.node("GatherElements", x, places, shape=values.shape, axis=op.axis),
        w.cast(places, indices.dtype),
    ]


def _order(w: GraphWriter, x: Ref, axis: int, descending: bool) -> Ref:
    """Return the positions along an axis in order, of equals the first first, NaN greatest.

    ONNX does not say where NaN goes. So NaNs are sorted as infinities, and then, with a second
    stable sort, put beyond all else.
    """
    size = x.shape[axis]
    if not x.dtype.is_float:
        return _top(w, x, size, axis, descending)
    wide = ordered(w, x)
    number = w.node("Equal", wide, wide, dtype=dtypes.i1)
    clean = w.where(number, wide, w.scalar(float("inf"), wide.dtype))
    first = _top(w, clean, size, axis, descending)
    strange = w.cast(w.node("Not", number), dtypes.si32)
    second = _top(w, w.node("GatherElements", strange, first, axis=axis), size, axis, descending)
    return w.node("GatherElements", first, second, axis=axis)


def _top(w: GraphWriter, x: Ref, k: int, axis: int, largest: bool) -> Ref:
    """Return the positions of the first `k` in order, si64."""
    wide = ordered(w, x)
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if k == 0:
        return w.expand(w.scalar(0, dtypes.si64), shape)
    types = [TensorType(wide.dtype, shape), TensorType(dtypes.si64, shape)]
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    return w.node_of("TopK", [wide, w.vector([k])], types, **attributes)[1]
