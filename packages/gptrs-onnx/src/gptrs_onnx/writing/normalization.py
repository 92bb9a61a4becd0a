"""The writer of layer normalization.

It is written as the arithmetic that PTIR defines, in two passes: runtimes differ in how they
compute the variance. The functional of that name, which models call, is ONNX's
`LayerNormalization`.
"""

from __future__ import annotations

from gptrs.api import ops as op_modules
from gptrs_onnx.writing.elementwise import widened
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.normalization


@writes(ops.LayerNorm)
def layer_norm(w: GraphWriter, op: ops.LayerNorm, x: Ref, scale: Ref, bias: Ref) -> Ref:
    """Write a normalization along an axis."""
    wide, factors, offsets = widened(w, x, scale, bias)
    size = w.vector([x.shape[op.axis]])
    count = w.cast(w.reshape(size, ()), wide.dtype)
    kept = tuple(1 if axis == op.axis else size for axis, size in enumerate(x.shape))

    def mean(values: Ref) -> Ref:
        total = w.node("ReduceSum", values, w.vector([op.axis]), shape=kept, keepdims=1)
        return w.node("Div", total, count)

    centred = w.node("Sub", wide, mean(wide))
    variance = mean(w.node("Mul", centred, centred))
    deviation = w.node("Sqrt", w.node("Add", variance, w.scalar(op.epsilon, wide.dtype)))
    aligned = [x.shape[op.axis] if axis == op.axis else 1 for axis in range(x.rank)]
    scaled = w.node(
        "Mul", w.node("Div", centred, deviation), w.reshape(factors, aligned), shape=x.shape
    )
    return w.cast(w.node("Add", scaled, w.reshape(offsets, aligned), shape=x.shape), x.dtype)
