"""Graphs with free sizes, called with sizes a, b, a where some are 1 or 0, against ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import GptrsError, ModelError  # noqa: E402
from gptrs_onnx.conversion import Conversion  # noqa: E402

GRAPHS = {
    "squeeze": "(float[m, n] x) => (float y) { y = Squeeze (x) }",
    "squeeze of computed sizes": "(float[m, n] x) => (float y) { t = Transpose (x) y = Squeeze"
    " (t) }",
    "squeeze, then reduced": "(float[m, n, 3] x) => (float y) <int64[1] a = {0}>"
    " { s = Squeeze (x) y = ReduceSum <keepdims = 0> (s, a) }",
    "squeeze of one axis": "(float[m, n] x) => (float y) <int64[1] a = {0}> { y = Squeeze (x, a) }",
    "unsqueeze": "(float[m, n] x) => (float y) <int64[2] a = {0, -1}>"
    " { u = Unsqueeze (x, a) y = Squeeze (u) }",
    "reshape with 0 and -1": "(float[m, n] x) => (float y) <int64[3] s = {0, -1, 1}>"
    " { y = Reshape (x, s) }",
    "reshape to one more": "(float[m, n] x) => (float y) <int64[1] f = {-1}> {"
    " h = Shape (x) s = Concat <axis = 0> (h, f) y = Reshape (x, s) }",
    "reshape to half": "(float[m, n] x) => (float y) <int64[2] f = {2, -1}> { y = Reshape (x, f) }",
    "reshape to numbers": "(float[m, n] x) => (float y) <int64[2] f = {3, 1}> { y = Reshape (x,"
    " f) }",
    "reshape to less": "(float[m, n] x) => (float y) <int64[1] f = {1}, int64[1] g = {-1}> {"
    " h = Shape <start = 0, end = 1> (x) l = Sub (h, f) s = Concat <axis = 0> (l, g)"
    " y = Reshape (x, s) }",
    "expand": "(float[m, 1] x) => (float y) <int64[2] s = {1, 4}> { y = Expand (x, s) }",
    "expand to a number": "(float[m, n] x) => (float y) <int64[2] s = {3, 3}> { y = Expand (x,"
    " s) }",
    "expand to a size": "(float[m] x, float[n] z) => (float y) { s = Shape (z) y = Expand (x, s) }",
    "expand as torch": "(float[m, n] x, float[1, n] z) => (float y)"
    " <int64 zero = {-1}, int64[2] o = {1, 1}> {"
    " s = Shape (x) e = Equal (s, zero) w = Where (e, o, s) y = Expand (z, w) }",
    "add": "(float[m, n] x, float[p, n] z) => (float y) { y = Add (x, z) }",
    "add of a row": "(float[m, n] x, float[p] z) => (float y) { y = Mul (x, z) }",
    "add of numbers": "(float[m, n] x) => (float y) <float[3] z = {1, 2, 3}> { y = Add (x, z) }",
    "where": "(bool[m, n] c, float[p, n] x) => (float y) <float z = {0}> { y = Where (c, x, z) }",
    "comparison": "(float[m, n] x, float[p, q] z) => (bool y) { y = Less (x, z) }",
    "max of three": "(float[m] x, float[n] z, float[p] w) => (float y) { y = Max (x, z, w) }",
    "prelu": "(float[m, n] x, float[p] z) => (float y) { y = PRelu (x, z) }",
    "concat": "(float[m, n] x, float[p, n] z) => (float y) { y = Concat <axis = 0> (x, z) }",
    "concat beside": "(float[m, n] x, float[p, n] z) => (float y) { y = Concat <axis = 1> (x, z) }",
    "tile": "(float[m, n] x) => (float y) <int64[2] r = {2, 1}> { y = Tile (x, r) }",
    "tile as often as a size": "(float[m, n] x) => (float y) { s = Shape (x) y = Tile (x, s) }",
    "split": "(float[m, n] x) => (float y, float z) { y, z = Split <axis = 1, num_outputs = 2>"
    " (x) }",
    "split by numbers": "(float[m, n] x) => (float y, float z) <int64[2] s = {2, 1}>"
    " { y, z = Split <axis = 1> (x, s) }",
    "slice": "(float[m, n] x) => (float y) <int64[1] b = {1}, int64[1] e = {-1}, int64[1] a = {1}>"
    " { y = Slice (x, b, e, a) }",
    "slice far": "(float[m, n] x) => (float y) <int64[1] b = {2}, int64[1] e ="
    " {9223372036854775807},"
    " int64[1] a = {1}> { y = Slice (x, b, e, a) }",
    "slice to before the start": "(float[m, n] x) => (float y)"
    " <int64[1] b = {2}, int64[1] e = {-2}, int64[1] a = {1}> { y = Slice (x, b, e, a) }",
    "slice from the end": "(float[m, n] x) => (float y) <int64[1] b = {-2}, int64[1] e = {2},"
    " int64[1] a = {1}> { y = Slice (x, b, e, a) }",
    "slice in steps": "(float[m, n] x) => (float y) <int64[1] b = {0}, int64[1] e = {1000},"
    " int64[1] a = {1}, int64[1] s = {2}> { y = Slice (x, b, e, a, s) }",
    "slice backwards": "(float[m, n] x) => (float y) <int64[1] b = {-1},"
    " int64[1] e = {-9223372036854775807}, int64[1] a = {1}, int64[1] s = {-1}>"
    " { y = Slice (x, b, e, a, s) }",
    "slice backwards to one": "(float[m, n] x) => (float y) <int64[1] b = {5},"
    " int64[1] e = {0}, int64[1] a = {1}, int64[1] s = {-1}> { y = Slice (x, b, e, a, s) }",
    "slice backwards from any place": "(float[m, n] x) => (float y)"
    " <int64[1] b = {9223372036854775807}, int64[1] e = {-9223372036854775808}, int64[1] a = {1},"
    " int64[1] s = {-1}> { y = Slice (x, b, e, a, s) }",
    "slice to a size": "(float[m, n] x, float[p] z) => (float y) <int64[1] b = {0}>"
    " { e = Shape (z) y = Slice (x, b, e, b) }",
    "gather of a shape": "(float[m, n] x) => (float y) <int64 i = {1}, int64[1] a = {0}> {"
    " w = Constant <value_ints = [-1]> () s = Shape (x) g = Gather (s, i) u = Unsqueeze (g, a)"
    " f = Concat <axis = 0> (u, w) y = Reshape (x, f) }",
    "gather": "(float[m, n] x) => (float y) <int64[2] i = {0, -1}> { y = Gather <axis = 1> (x,"
    " i) }",
    "if of a size": "(float[m, n] x) => (float y) <int64 one = {1}> {"
    " s = Shape <start = 0, end = 1> (x) e = Equal (s, one) y = If (e) <then_branch = t () =>"
    " (float a) { a = Neg (x) }, else_branch = u () => (float b) { b = Identity (x) }> }",
    "if of a size, other shapes": "(float[m, n] x) => (float y) <int64 one = {1}, int64[1] z ="
    " {0}> {"
    " s = Shape <start = 1, end = 2> (x) e = Equal (s, one) y = If (e) <then_branch = t () =>"
    " (float a) { a = Squeeze (x) }, else_branch = u () => (float b) { b = Unsqueeze (x, z) }> }",
    "if of equal sizes": "(float[m, n] x) => (float y) {"
    " s = Shape <start = 0, end = 1> (x) r = Shape <start = 1, end = 2> (x) e = Equal (s, r)"
    " y = If (e) <then_branch = t () => (float a) { a = Neg (x) },"
    " else_branch = u () => (float b) { b = Identity (x) }> }",
    "if of what is not equal": "(float[m, n] x) => (float y) <int64 one = {1}> {"
    " s = Shape <start = 0, end = 1> (x) e = Equal (s, one) o = Not (e) y = If (o) <then_branch ="
    " t () => (float a) { a = Neg (x) }, else_branch = u () => (float b) { b = Identity (x) }> }",
    "a size as data": "(float[m, n] x) => (int64 y) <int64 one = {1}> {"
    " w = Constant <value_int = 7> () s = Shape (x) e = Equal (s, one) y = Where (e, w, s) }",
    "a size as truth": "(float[m, n] x) => (bool y) { s = Shape (x) y = Cast <to = 9> (s) }",
    "a size as a float": "(float[m, n] x) => (float y) { s = Shape (x) f = Cast <to = 1> (s)"
    " y = Sqrt (f) }",
    "half a size": "(float[m, n] x) => (float y) <int64[1] two = {2}, int64[1] b = {0}> {"
    " a = Constant <value_ints = [1]> () s = Shape <start = 1, end = 2> (x) h = Div (s, two)"
    " y = Slice (x, b, h, a) }",
    "a size modulo": "(float[m, n] x) => (int64 y) <int64 two = {2}> {"
    " s = Shape (x) y = Mod (s, two) }",
    "sizes scaled as floats": "(float[m, n] x) => (float y) <float[2] k = {1.5, 2.0}> {"
    " s = Shape (x) f = Cast <to = 1> (s) p = Mul (f, k) w = Floor (p) t = Cast <to = 7> (w)"
    " y = ConstantOfShape (t) }",
    "sizes rounded up as floats": "(float[m, n] x) => (float y) <float k = {4}, int64[1] b = {0}> {"
    " s = Shape (x) f = Cast <to = 1> (s) q = Div (f, k) c = Ceil (q) p = Mul (c, k)"
    " t = Cast <to = 7> (p) r = Sub (t, s) z = Sub (s, s) w = Concat <axis = 0> (z, r)"
    " y = Pad (x, w) }",
    "sizes rounded as floats": "(float[m, n] x) => (float y) <float k = {4}, float two = {2}> {"
    " s = Shape (x) f = Cast <to = 11> (s) g = Cast <to = 1> (f) q = Div (g, k) c = Round (q)"
    " p = Mul (c, k) o = Max (p, two) t = Cast <to = 6> (o) u = Cast <to = 7> (t)"
    " y = ConstantOfShape (u) }",
    "least of sizes": "(float[m, n] x) => (int64 y) { s = Shape <start = 0, end = 1> (x)"
    " t = Shape <start = 1, end = 2> (x) y = Min (s, t) }",
    "constant of a shape": "(float[m, n] x) => (float y) { s = Shape (x) y = ConstantOfShape (s) }",
    "range": "(float[m] x) => (int64 y) <int64 zero = {0}, int64 one = {1}> {"
    " s = Size (x) y = Range (zero, s, one) }",
    "range from two": "(float[m] x) => (int64 y) <int64 two = {2}, int64 one = {1}> {"
    " s = Size (x) y = Range (two, s, one) }",
    "range by two": "(float[m] x) => (int64 y) <int64 zero = {0}, int64 two = {2}> {"
    " s = Size (x) y = Range (zero, s, two) }",
    "range down": "(float[m] x) => (int64 y) <int64 zero = {0}, int64 d = {-1}> {"
    " s = Size (x) y = Range (s, zero, d) }",
    "non zero of a constant": "(float[m] x) => (float y) {"
    " s = Shape (x) c = ConstantOfShape <value = float[1] {1}> (s) z = NonZero (c)"
    " t = Transpose (z) y = GatherND (x, t) }",
    "non zero": "(float[m, n] x) => (int64 y) { y = NonZero (x) }",
    "compress": "(float[m, n] x) => (float y) <bool[2] c = {1, 0}> {"
    " y = Compress <axis = 1> (x, c) }",
    "flatten": "(float[m, n, p] x) => (float y) { y = Flatten <axis = 2> (x) }",
    "sum of nothing": "(float[m, n] x) => (float y) <int64[1] a = {1}> { y = ReduceSum (x, a) }",
    "sum of all": "(float[m, n] x) => (float y) { y = ReduceSum (x) }",
    "no sum": "(float[m, n] x) => (float y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }",
    "length of no sum": "(float[m, n] x) => (float y) { y = ReduceL2 <noop_with_empty_axes = 1>"
    " (x) }",
    "mean": "(float[m, n] x) => (float y) { y = ReduceMean <keepdims = 0> (x) }",
    "softmax": "(float[m, n] x) => (float y) { y = Softmax (x) }",
    "arg max": "(float[m, n] x) => (int64 y) { y = ArgMax <axis = 1, select_last_index = 1> (x) }",
    "top two": "(float[m, n] x) => (float y, int64 z) <int64[1] k = {2}> { y, z = TopK (x, k) }",
    "top all": "(float[m, n] x) => (float y, int64 z) { k = Shape <start = 1, end = 2> (x)"
    " y, z = TopK (x, k) }",
    "top half": "(float[m, n] x) => (float y, int64 z) <int64[1] two = {2}> {"
    " s = Shape <start = 1, end = 2> (x) k = Div (s, two) y, z = TopK <largest = 0> (x, k) }",
    "cumulative": "(float[m, n] x) => (float y) <int64 a = {1}> { y = CumSum (x, a) }",
    "triangle": "(float[m, n] x) => (float y) <int64 k = {1}> { y = Trilu (x, k) }",
    "eye": "(float[m, n] x) => (float y) { y = EyeLike (x) }",
    "one hot": "(int64[m] i, float[n] x) => (float y) <float[2] v = {0, 1}> {"
    " d = Shape (x) y = OneHot (i, d, v) }",
    "pad": "(float[m, n] x) => (float y) <int64[4] p = {0, 1, 0, 2}> { y = Pad (x, p) }",
    "pad of the edge": "(float[m, n] x) => (float y) <int64[4] p = {0, 1, 0, 1}>"
    ' { y = Pad <mode = "edge"> (x, p) }',
    "pad as a mirror": "(float[m, n] x) => (float y) <int64[4] p = {0, 1, 0, 1}>"
    ' { y = Pad <mode = "reflect"> (x, p) }',
    "pad round": "(float[m, n] x) => (float y) <int64[4] p = {0, 1, 0, 1}>"
    ' { y = Pad <mode = "wrap"> (x, p) }',
    "pad to two": "(float[n] x) => (float y) <int64[1] two = {2}, int64[1] zero = {0}> {"
    " s = Shape (x) d = Sub (two, s) p = Concat <axis = 0> (zero, d) y = Pad (x, p) }",
    "pad to a multiple": "(float[n] x) => (float y) <int64[1] four = {4}, int64[1] zero = {0}> {"
    " s = Shape (x) m = Mod (s, four) d = Sub (four, m) r = Mod (d, four)"
    " p = Concat <axis = 0> (zero, r) y = Pad (x, p) }",
    "rolled": "(float[n] x) => (float y) <int64[1] by = {-2}, int64[1] zero = {0}> {"
    " s = Shape (x) k = Mod (by, s) e = Constant <value_ints = [9999]> ()"
    " a = Slice (x, k, e, zero) b = Slice (x, zero, k, zero) y = Concat <axis = 0> (a, b) }",
    "sampled at places": "(float[1, 1, m, n] x, float[1, p, q, 2] z) => (float y)"
    ' { y = GridSample <padding_mode = "border"> (x, z) }',
    "sampled at mirrored places": "(float[1, 1, m, n] x, float[1, p, q, 2] z) => (float y)"
    ' { y = GridSample <padding_mode = "reflection"> (x, z) }',
    "pad away": "(float[n] x) => (float y) <int64[2] p = {0, -1}> { y = Pad (x, p) }",
    "crop": "(float[m, n] x) => (float y) <int64[2] s = {2, 2}> { y = CenterCropPad (x, s) }",
    "resize by scales": "(float[1, 1, n] x) => (float y) <float[0] r = {}, float[3] s = {1, 1, 2}>"
    " { y = Resize (x, r, s) }",
    "resize to numbers": "(float[m, 1, n] x) => (float y) <float[0] r = {}, int64[3] t = {1, 1, 4}>"
    ' { y = Resize <mode = "linear"> (x, r, r, t) }',
    "resize smoothly": "(float[m, n] x) => (float y) <float[0] r = {}, int64[2] t = {2, 5}>"
    ' { y = Resize <mode = "cubic"> (x, r, r, t) }',
    "resize smoothly inside": "(float[m, n] x) => (float y)"
    " <float[0] r = {}, float[2] s = {1.5, 0.75}>"
    ' { y = Resize <mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5> (x, r, s) }',
    "matrices": "(float[m, n] x, float[p, q] z) => (float y) { y = MatMul (x, z) }",
    "batches of matrices": "(float[b, m, n] x, float[c, n, m] z) => (float y) { y = MatMul (x,"
    " z) }",
    "a matrix of weights": "(float[m, n] x) => (float y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
    " { y = MatMul (x, w) }",
    "gemm": "(float[m, n] x, float[p, q] c) => (float y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
    " { y = Gemm (x, w, c) }",
    "einsum": "(float[m, n] x, float[p, n] z) => (float y)"
    ' { y = Einsum <equation = "ab,ab->a"> (x, z) }',
    "conv": "(float[b, 1, n] x) => (float y) <float[1, 1, 2] w = {1, 2}>"
    " { y = Conv <pads = [1, 1]> (x, w) }",
    "conv in steps": "(float[b, 1, n] x) => (float y) <float[1, 1, 2] w = {1, 2}>"
    " { y = Conv <pads = [1, 1], strides = [2]> (x, w) }",
    "conv of free channels": "(float[b, c, n] x) => (float y) <float[1, 3, 1] w = {1, 2, 3}>"
    " { y = Conv (x, w) }",
    "pool": "(float[b, 1, n] x) => (float y) { y = MaxPool <kernel_shape = [2], pads = [1, 0]>"
    " (x) }",
    "pool with places": "(float[b, c, n] x) => (float y, int64 z)"
    " { y, z = MaxPool <kernel_shape = [3], pads = [1, 1], strides = [2]> (x) }",
    "average": "(float[b, 1, n] x) => (float y)"
    " { y = AveragePool <kernel_shape = [2], strides = [2], ceil_mode = 1> (x) }",
    "conv in steps, padded by the size": "(float[b, 1, n] x) => (float y)"
    ' <float[1, 1, 3] w = {1, 2, 3}> { y = Conv <auto_pad = "SAME_UPPER", strides = [2]> (x, w) }',
    "pool padded by the size": "(float[b, 1, n] x) => (float y)"
    ' { y = MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [2], strides = [2]> (x) }',
    "average padded by the size": "(float[b, 1, n] x) => (float y)"
    ' { y = AveragePool <auto_pad = "SAME_UPPER", kernel_shape = [3], strides = [2]> (x) }',
    "average of all": "(float[b, 1, n] x) => (float y) { y = GlobalAveragePool (x) }",
    "layer norm": "(float[m, n] x) => (float y) <float[3] s = {1, 2, 3}>"
    " { y = LayerNormalization (x, s) }",
    "scatter": "(float[m, n] x, int64[m, p] i, float[m, p] u) => (float y)"
    " { y = ScatterElements <axis = 1> (x, i, u) }",
    "a loop": "(float[m] x) => (float y) <bool t = {1}> {"
    " s = Size (x) y = Loop (s, t, x) <body = l (int64 i, bool c, float[m] a) => (bool d,"
    " float[m] e)"
    " { d = Identity (c) e = Add (a, x) }> }",
    "a collecting loop": "(float[m] x) => (float y) <bool t = {1}, int64 two = {2}> {"
    " y = Loop (two, t) <body = l (int64 i, bool c) => (bool d, float[m] e)"
    " { d = Identity (c) e = Neg (x) }> }",
    "depth to space": "(float[b, 4, m, n] x) => (float y) { y = DepthToSpace <blocksize = 2> (x) }",
    "sequence": "(float[m, n] x) => (float y) <int64 one = {1}, int64 z = {0}> {"
    " s = SplitToSequence <axis = 1> (x, one) y = SequenceAt (s, z) }",
}


def calls(names: list[str]) -> Iterator[dict[str, int]]:
    """Yield sizes by name: plain ones, one of each at 1, at 0, and the plain ones again."""
    plain = dict.fromkeys(names, 3)
    yield plain
    for size in (1, 0):
        for name in names:
            yield plain | {name: size}
        yield dict.fromkeys(names, size)
    yield plain
    yield {name: 2 + place for place, name in enumerate(names)}
    for name in names:
        yield dict.fromkeys(names, 1) | {name: 4}
    yield plain


def arrays(graph: Any, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Return inputs of these sizes; indices are 0, as any axis that is not empty has."""
    made: dict[str, Any] = {}
    for each in graph.input:
        held = each.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in held.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(held.elem_type)
        made[each.name] = (rng.integers(-4, 5, shape) * (dtype.kind != "i")).astype(dtype)
    return made


def names_of(graph: Any) -> list[str]:
    dims = itertools.chain(*(each.type.tensor_type.shape.dim for each in graph.input))
    return list(dict.fromkeys(d.dim_param for d in dims if d.dim_param))


def session_of(proto: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


EMPTY = {
    "concat beside": "ONNX Runtime leaves out parts without elements, whatever their other sizes",
    "compress": "ONNX Runtime leaves out what is chosen behind the end",
    "pool with places": "ONNX Runtime counts a window where none fits",
    "mean": "ONNX Runtime gives the mean of nothing as 0, the standard's reference as NaN",
    "arg max": "ONNX Runtime finds places among no elements where the result is empty",
}
"""Graphs that are not compared for sizes of 0, and why."""
ONE_PROGRAM = (
    "sizes scaled as floats",
    "sizes rounded up as floats",
    "slice backwards from any place",
    "pad to a multiple",
    "rolled",
    "average padded by the size",
    "sampled at places",
    "sampled at mirrored places",
    "top half",
    "resize smoothly inside",
    "pool with places",
)
"""Graphs that are converted once for all sizes of 2 and more."""
COMPILED = (
    "squeeze",
    "if of a size",
    "pad to two",
    "slice",
    "add of a row",
    "sizes scaled as floats",
)
"""Graphs that numba compiles as well."""


def check(name: str, backend: str) -> None:
    """Compare all calls of a graph that ONNX Runtime runs; AssertionError for the first flaw."""
    header = '<ir_version: 8, opset_import: ["" : 18]> g'
    proto = parser.parse_model(f"{header} {GRAPHS[name]}")
    session, model = session_of(proto), gptrs_onnx.from_proto(proto, backend)
    rng, compared = np.random.default_rng(0), 0
    for sizes in calls(names_of(proto.graph)):
        if name in EMPTY and 0 in sizes.values():
            continue
        inputs = arrays(proto.graph, sizes, rng)
        try:
            wanted = session.run(None, inputs)
        except Exception:  # of sizes that do not fit
            continue
        compared += 1
        for found, expected in zip(model(**inputs).values(), wanted, strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), sizes
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6, err_msg=str(sizes))
    assert compared


@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_of_1_and_0_between_others_give_what_onnx_runtime_gives(name: str) -> None:
    check(name, "ref")


@pytest.mark.sample(0)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_sizes_of_1_and_0_between_others_give_the_same(name: str) -> None:
    check(name, "numba")


def model_of(text: str) -> gptrs_onnx.OnnxModel:
    header = '<ir_version: 8, opset_import: ["" : 18]> g'
    return gptrs_onnx.from_proto(parser.parse_model(f"{header} {text}"), "ref")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


class Counted(Conversion):
    """Counts how often a graph is converted."""

    count = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Counted.count += 1


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that says how many conversions there were since it was last called."""
    monkeypatch.setattr("gptrs_onnx.graph.Conversion", Counted)

    def count() -> int:
        found, Counted.count = Counted.count, 0
        return found

    count()
    return count


def test_sizes_at_which_numbers_are_needed_leave_the_program_of_other_sizes(
    converted: Callable[[], int],
) -> None:
    model = model_of(GRAPHS["squeeze"])
    for x, conversions in ((ones(1, 3), 1), (ones(2, 3), 1), (ones(1, 3), 0), (ones(4, 5), 0)):
        assert model(x)["y"].shape == np.squeeze(x).shape
        assert converted() == conversions
    assert "?0" in str(model.program(ones(2, 3)))
    assert "f32[1, ?1]" in str(model.program(ones(1, 3)))


def test_a_call_of_the_shapes_of_an_earlier_one_runs_its_program_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, chosen = model_of(GRAPHS["squeeze"]), model_of(IF_OF_DATA)
    given = [ones(1, 3), ones(2, 3), ones(2, 1)]
    conditions = [(np.asarray(True), ones(2, 2)), (np.asarray(False), ones(3, 2))]
    first = [model(x)["y"] for x in given], [chosen(*each)["y"] for each in conditions]
    searches: list[object] = []
    search = gptrs_onnx.OnnxModel._searched

    def counted(*arguments: Any, **named: Any) -> Any:
        searches.append(arguments)
        return search(*arguments, **named)

    monkeypatch.setattr(gptrs_onnx.OnnxModel, "_searched", counted)
    again = [model(2 * x)["y"] for x in given]
    assert not searches
    for x, before, now in zip(given, first[0], again, strict=True):
        assert np.array_equal(2 * before, now)
        assert not now.flags.writeable
        assert not np.shares_memory(model(x)["y"], x)
    # Values that are compiled in are looked at in each call.
    assert [len(chosen(*each)["y"]) for each in conditions] == [len(each) for each in first[1]]
    assert len(searches) == 2


def test_a_graph_that_asks_numbers_of_all_sizes_gets_them_from_then_on(
    converted: Callable[[], int],
) -> None:
    model = model_of(GRAPHS["add of numbers"])
    for x, conversions in ((ones(1, 3), 2), (ones(2, 3), 0), (ones(1, 3), 0), (ones(2, 3), 0)):
        assert model(x)["y"].tolist() == [[2, 3, 4]] * len(x)
        assert converted() == conversions


def test_images_padded_by_their_size_have_one_program(converted: Callable[[], int]) -> None:
    same = 'auto_pad = "SAME_UPPER", strides = [2, 2]'
    model = model_of(
        "(float[b, 1, h, w] x) => (float y) <float[1, 1, 3, 3] k = {1, 2, 3, 4, 5, 6, 7, 8, 9}>"
        f" {{ a = Conv <{same}> (x, k) c = Conv <{same}> (a, k)"
        f" y = MaxPool <{same}, kernel_shape = [2, 2]> (c) }}"
    )
    counts: list[int] = []
    for height, width in ((16, 24), (17, 23), (31, 8), (1, 40)):
        assert model(ones(1, 1, height, width))["y"].shape[2:] == (-(-height // 8), -(-width // 8))
        counts.append(converted())
    assert counts == [1, 0, 0, 0]


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_graphs_that_compute_with_their_sizes_have_one_program(
    name: str, converted: Callable[[], int]
) -> None:
    model = model_of(GRAPHS[name])
    graph = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {GRAPHS[name]}').graph
    rng = np.random.default_rng(0)
    for size in (7, 4, 10):
        sizes = {each: size + place for place, each in enumerate(names_of(graph))}
        model(**arrays(graph, sizes, rng))
    assert converted() == 1


WINDOWS = {
    "pooling that rounds up": (
        "(float[b, 1, h] x) => (float y) { a = MaxPool <ceil_mode = 1, kernel_shape = [2],"
        " strides = [2]> (x) y = AveragePool <ceil_mode = 1, kernel_shape = [3], strides = [2],"
        " pads = [1, 1]> (a) }",
        lambda size: [1, 1, -(-size // 2) // 2 + 1],
    ),
    "frames of a signal": (
        "(float[b, n, 1] x) => (float y) <int64 step = {4}, int64 size = {8}>"
        " { y = STFT (x, step, , size) }",
        lambda size: [1, (size - 8) // 4 + 1, 5, 2],
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_over_a_free_axis_have_one_program(name: str, converted: Callable[[], int]) -> None:
    text, shape_of = WINDOWS[name]
    model = model_of(text)
    is_signal = name == "frames of a signal"
    for size in (16, 17, 22, 23, 40):
        x = ones(1, size, 1) if is_signal else ones(1, 1, size)
        found = model(x)["y"]
        assert list(found.shape) == shape_of(size)
        np.testing.assert_allclose(found[:, :, 0, 0] if is_signal else found, 8 if is_signal else 1)
    assert converted() == 1


# How a loop over an axis ends, and what begins it: with a limit, or by a counter and a bound, which
# TensorFlow's converter compares as floats.
AXIS_LOOPS = {
    "a limit": ("limit", "t", "next = Add (c, one) k2 = Identity (k)"),
    "a counter": ('""', "begins", "next = Add (c, one) k2 = Less (next, bound)"),
    "both": (
        "limit", "begins",
        "next = Add (one, c) j = Add (i, one) a = Less (j, most) b = LessOrEqual (bound, next)"
        " d = Not (b) k2 = And (a, d)",
    ),
    "floats": (
        "limit", "begins",
        "next = Add (c, one) f = Cast <to = 1> (next) g = Cast <to = 1> (bound)"
        " k2 = Greater (g, f)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AXIS_LOOPS)
def test_a_loop_over_an_axis_has_one_program(name: str, converted: Callable[[], int]) -> None:
    limit, going, ends = AXIS_LOOPS[name]
    model = model_of(f"""(float[n, 3] x) => (float[3] last, float[m, 3] all) <int64 one = {{1}},
    int64 zero = {{0}}, int64 most = {{9223372036854775807}}, float[3] none = {{0, 0, 0}}> {{
        s = Shape <end = 1> (x) limit = Squeeze (s) t = Constant <value = bool {{1}}> ()
        u = Cast <to = 1> (zero) v = Cast <to = 1> (limit) begins = Less (u, v)
        count, last, same, all = Loop ({limit}, {going}, zero, none, limit) <body = body
            (int64 i, bool k, int64 c, float[3] h, int64 bound)
            => (bool k2, int64 next, float[3] h2, int64 kept, float[3] o) {{
            row = Gather (x, c) h2 = Add (h, row) o = Identity (h2) kept = Identity (bound) {ends}
        }}> }}""")
    for size in (7, 40, 1, 2):
        x = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
        found = model(x)
        np.testing.assert_array_equal(found["all"], np.cumsum(x, 0))
        np.testing.assert_array_equal(found["last"], x.sum(0))
    assert converted() == 1


def test_a_long_loop_whose_state_grows_is_copies_of_its_body(converted: Callable[[], int]) -> None:
    model = model_of("""(float[n, 3] x) => (float[m, 3] y) <int64 count = {40}> {
        t = Constant <value = bool {1}> ()
        y = Loop (count, t, x) <body = b (int64 i, bool k, float[m, 3] h)
            => (bool k2, float[m2, 3] h2) { k2 = Identity (k) h2 = Concat <axis = 0> (h, x) }> }""")
    for size in (2, 1, 3):
        np.testing.assert_array_equal(
            model(x := np.full((size, 3), size, np.float32))["y"], np.tile(x, (41, 1))
        )
    assert converted() == 1


def test_blocks_of_pixels_have_one_program(converted: Callable[[], int]) -> None:
    model = model_of("(float[1, 1, m, n] x) => (float y) { y = SpaceToDepth <blocksize = 2> (x) }")
    for m, n in ((4, 6), (2, 10)):
        x = np.arange(m * n, dtype=np.float32).reshape(1, 1, m, n)
        found = model(x)["y"]
        assert found.shape == (1, 4, m // 2, n // 2)
        np.testing.assert_array_equal(found[0, 3], x[0, 0, 1::2, 1::2])
    assert converted() == 1
    with pytest.raises(ModelError, match="divides an axis of 3 into blocks of 2"):
        model(ones(1, 1, 4, 3))


def test_what_did_not_help_is_not_kept(converted: Callable[[], int]) -> None:
    model = model_of(GRAPHS["add of numbers"])
    for _ in range(2):
        with pytest.raises(GptrsError, match=r"\[2, 5\], \[3\] do not"):  # the numbers, no names
            model(ones(2, 5))
    assert converted() > 0
    assert model(ones(2, 3))["y"].shape == (2, 3)
    assert converted() == 2  # with symbols first
    chosen = model_of(IF_OF_DATA)
    with pytest.raises(GptrsError, match=r"`reshape` of f32\[3, 3\] to \[2, 2\]"):
        chosen(np.asarray(True), ones(3, 3))
    converted()
    for condition, x in ((True, ones(2, 2)), (False, ones(2, 3)), (True, ones(1, 4))):
        assert chosen(np.asarray(condition), x)["y"].shape == (2 + (not condition), 2)
    assert converted() > 0
    assert chosen(np.asarray(True), ones(2, 2))["y"].shape == (2, 2)
    assert converted() == 0


IF_OF_DATA = """(bool c, float[m, n] x) => (float y) <int64[2] s = {2, 2}, int64[2] t = {3, 2}> {
    y = If (c) <then_branch = t () => (float a) { a = Reshape (x, s) },
                else_branch = e () => (float b) { b = Reshape (x, t) }> }"""


def test_a_way_that_is_not_taken_need_not_fit() -> None:
    model = model_of(IF_OF_DATA)
    for condition, size in ((True, 2), (False, 3), (True, 2)):
        found = model(np.asarray(condition), ones(size, 2))["y"]
        assert found.shape == (size, 2)
    both = model_of(IF_OF_DATA.replace("bool c", "bool[k] d").replace("y = If", """
        zero = Constant <value_int = 0> () c = Gather (d, zero) y = If"""))  # fmt: skip
    for count in (4097, 4096, 4097):  # of much data, it is computed first
        assert both(np.ones(count, bool), ones(2, 2))["y"].shape == (2, 2)
        assert both(np.zeros(count, bool), ones(3, 2))["y"].shape == (3, 2)


def test_ways_of_other_types_are_those_of_a_condition_that_is_small() -> None:
    model = model_of("""(bool c, float[m, n] x) => (float y) {
        y = If (c) <then_branch = t () => (float a) { a = Flatten <axis = 0> (x) },
                    else_branch = e () => (float b) { b = Transpose (x) }> }""")
    for condition, shape in ((True, (1, 6)), (False, (3, 2)), (True, (1, 6))):
        assert model(np.asarray(condition), ones(2, 3))["y"].shape == shape


def test_values_are_asked_for_only_where_numbers_do_not_help(
    converted: Callable[[], int],
) -> None:
    text = "(float[m, n] x, bool c) => (float y) <float[3] w = {1, 2, 3}> {"
    model = model_of(text + """ y = If (c) <then_branch = t () => (float a) { a = Add (x, w) },
                 else_branch = e () => (float b) { b = Identity (x) }> }""")  # fmt: skip
    for condition in (True, False):
        found = model(ones(2, 3), np.asarray(condition))["y"]
        assert found.tolist() == [[2, 3, 4] if condition else [1, 1, 1]] * 2
    assert converted() == 2  # with symbols, and with numbers; the condition stays one of data


def with_dims(*dims: int | str) -> Any:
    """Return `y = Relu (x)` with these sizes of x and y, as they are written in a file."""
    value = [onnx.helper.make_tensor_value_info(name, 1, list(dims)) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:], value_info=[])
    opset = onnx.helper.make_opsetid("", 18)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize(
    "dims", [(-1, 3), (-7, -1), ("?", "?"), ("", ""), ("-1", "-1"), ("b", "b")]
)
def test_whatever_a_file_writes_for_any_size_is_free(dims: tuple[int | str, ...]) -> None:
    proto = with_dims(*dims)
    model = gptrs_onnx.from_proto(proto, "ref")
    for shape in ((2, 3), (1, 3), (3, 3), (2, 3)):
        x = -ones(*shape)
        assert model(x)["y"].shape == session_of(proto).run(None, {"x": x})[0].shape == shape


def test_an_input_without_a_shape_takes_any() -> None:
    proto = with_dims("n")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    model = gptrs_onnx.from_proto(proto, "ref")
    for shape in ((2, 3), (), (1,)):
        assert model(-ones(*shape))["y"].shape == shape


def test_a_size_of_0_in_a_file_is_that_size() -> None:
    proto = with_dims(0, "n")
    model = gptrs_onnx.from_proto(proto, "ref")
    assert model(ones(0, 2))["y"].shape == (0, 2)
    with pytest.raises(GptrsError, match=r"x: f32\[0, n\] got an array of shape \[1, 2\]"):
        model(ones(1, 2))
    with pytest.raises(Exception, match="Got: 1 Expected: 0"):
        session_of(proto).run(None, {"x": ones(1, 2)})


def test_free_sizes_without_a_name_are_told_by_their_place() -> None:
    model = gptrs_onnx.from_proto(with_dims(-1, 3, "?", "height"), "ref")
    assert str(model.inputs["x"]) == "x: f32[x_0, 3, x_2, height]"


@pytest.mark.parametrize("step", [1, -1, 2])
def test_slices_of_any_bounds_are_those_of_numpy_for_all_sizes(step: int) -> None:
    for begin, end in itertools.product((-3, -1, 0, 1, 2, 9), repeat=2):
        model = model_of(
            f"(float[n] x) => (float y) <int64[1] b = {{{begin}}}, int64[1] e = {{{end}}},"
            f" int64[1] a = {{0}}, int64[1] s = {{{step}}}> {{ y = Slice (x, b, e, a, s) }}"
        )
        for size in (4, 1, 2, 0, 3, 4):
            x = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(
                model(x)["y"], x[begin:end:step], f"{begin}:{end}, {size}"
            )
