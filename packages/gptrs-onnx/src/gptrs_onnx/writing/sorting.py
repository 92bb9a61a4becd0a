"""Writers of ops that put elements in order."""

from __future__ import annotations

from gptrs.api.programs import TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.layout import sliced
from gptrs_onnx.writing.reduction import ordered
from gptrs_onnx.writing.registry import writes

ops = op_modules.sorting


@writes(ops.Sort)
def sort(w: GraphWriter, op: ops.Sort, x: Ref, *more: Ref) -> list[Ref]:
    """Write a stable sort: all positions in order, and what is there."""
    places = _order(w, x, op.axis, op.descending)
    return [w.node("GatherElements", each, places, axis=op.axis) for each in (x, *more)]


@writes(ops.TopK)
def top_k(w: GraphWriter, op: ops.TopK, x: Ref) -> list[Ref]:
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
