"""Writers of ops that make a tensor from attributes alone."""

from __future__ import annotations

from gptrs.api.programs import TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.creation


@writes(ops.Constant)
def constant(w: GraphWriter, op: ops.Constant) -> Ref:
    """Write a constant; one that repeats an element is that element, expanded."""
    shape = op.value.type.shape
    if op.value.splat is not None and op.value.type.size > 1:
        return w.expand(w.constant(op.value.array.reshape(-1)[:1].reshape(())), shape)
    return w.constant(op.value.array)


@writes(ops.Iota)
def iota(w: GraphWriter, op: ops.Iota) -> Ref:
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
