"""The writer of layer normalization.

It is written as the arithmetic that PTIR defines, which takes the mean out twice: runtimes differ
in how they compute the variance. The functional of that name, which models call, is ONNX's
`LayerNormalization`.
"""

from __future__ import annotations

import math

from gptrs.api.programs import SymbolicDim
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.elementwise import widened
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.normalization


@writes(ops.LayerNorm)
def layer_norm(w: GraphWriter, op: ops.LayerNorm, x: Ref, scale: Ref, bias: Ref) -> Ref:
    """Write a normalization along an axis."""
    wide, factors, offsets = widened(w, x, scale, bias)
    size = x.shape[op.axis]
    # Scaled by a power of two, no sum overflows; that of a free size is not known.
    exponent = 0 if isinstance(size, SymbolicDim) else math.frexp(size)[1]
    scale_down = w.scalar(math.ldexp(1.0, -exponent), wide.dtype)
    count = w.node("Mul", w.cast(w.reshape(w.vector([size]), ()), wide.dtype), scale_down)
    kept = tuple(1 if axis == op.axis else size for axis, size in enumerate(x.shape))

    def mean(values: Ref) -> Ref:
        values = w.node("Mul", values, scale_down) if exponent else values
        total = w.node("ReduceSum", values, w.vector([op.axis]), shape=kept, keepdims=1)
        return w.node("Div", total, count)

    centred = w.node("Sub", wide, mean(wide))
    centred = w.node("Sub", centred, mean(centred))
    variance = mean(w.node("Mul", centred, centred))
    deviation = w.node("Sqrt", w.node("Add", variance, w.scalar(op.epsilon, wide.dtype)))
    aligned = [x.shape[op.axis] if axis == op.axis else 1 for axis in range(x.rank)]
    scaled = w.node(
        "Mul", w.node("Div", centred, deviation), w.reshape(factors, aligned), shape=x.shape
    )
    return w.cast(w.node("Add", scaled, w.reshape(offsets, aligned), shape=x.shape), x.dtype)
