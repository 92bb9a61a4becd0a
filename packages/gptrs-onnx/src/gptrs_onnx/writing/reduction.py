"""Writers of ops that combine the elements along some axes: into one, or into running totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import onnx
from onnx import helper

from gptrs.api.programs import DType, SymbolicDim, TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.element_types import ONNX_TYPES
from gptrs_onnx.writing.elementwise import converted, widened
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.instructions import writes

# The writer of products: matrices after transposes and reshapes.


contraction_ops = op_modules.contraction


def summing_dtype(dtype: DType) -> DType:
    """Return the type in which ONNX sums what is summed in `dtype`: integers wrap afterwards."""
    if not dtype.is_integer:
        return dtype
    return dtypes.si32 if dtype.bits < 32 or dtype is dtypes.si32 else dtypes.si64


@writes(contraction_ops.DotGeneral)
def dot_general(w: GraphWriter, op: contraction_ops.DotGeneral, lhs: Ref, rhs: Ref) -> Ref:
    """Write sums of products, in the accumulate type."""
    accumulator = op.accumulator(lhs.type)
    wide = summing_dtype(
        dtypes.f32 if accumulator.is_float and accumulator.bits < 32 else accumulator
    )
    result = op.infer(lhs.type, rhs.type)
    rows, columns = op.free_lhs(lhs.type), op.free_rhs(rhs.type)
    # Into an accumulate type, integers wrap.
    left = w.transpose(w.cast(lhs, wide), (*op.batch_lhs, *rows, *op.contract_lhs))
    right = w.transpose(w.cast(rhs, wide), (*op.batch_rhs, *op.contract_rhs, *columns))
    batch = tuple(lhs.shape[axis] for axis in op.batch_lhs)
    m = tuple(lhs.shape[axis] for axis in rows)
    n = tuple(rhs.shape[axis] for axis in columns)
    k = math.prod(lhs.shape[axis] for axis in op.contract_lhs)
    # Without a batch, all rows are one matrix whatever their axes are, as in a linear layer.
    lead = m if not batch and m else (math.prod(m),)
    left = w.reshape(left, (*batch, *lead, k))
    right = w.reshape(right, (*batch, k, math.prod(n)))
    product = w.node("MatMul", left, right, shape=(*batch, *lead, math.prod(n)))
    total = w.cast(w.reshape(product, result.shape), accumulator)
    return converted(w, total, result.dtype)


reduction_ops = op_modules.reduction
_REDUCTIONS: Final = {
    "sum": "ReduceSum",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
}
_COMBINED: Final = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min"}


@writes(reduction_ops.Reduce)
def reduce(w: GraphWriter, op: reduction_ops.Reduce, x: Ref) -> Ref:
    """Write a reduction over axes."""
    result = op.infer(x.type)
    if op.kind in ("and", "or"):
        return _logical(w, op, x, result)
    accumulator = op.accumulator(x.type)
    total = reduced(w, op.kind, w.cast(x, accumulator), op.axes)
    return converted(w, w.reshape(total, result.shape), result.dtype)


def reduced(w: GraphWriter, kind: str, x: Ref, axes: Sequence[int]) -> Ref:
    """Return `x` with these axes combined and left out, in its own type: integers wrap."""
    shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    if not axes:
        return x
    if any(x.shape[axis] == 0 for axis in axes):
        return w.expand(w.scalar(identity(kind, x.dtype), x.dtype), shape)
    wide = w.cast(x, combining_dtype(kind, x.dtype))
    made = w.node(_REDUCTIONS[kind], wide, w.vector(axes), shape=shape, keepdims=0)
    if kind in ("max", "min") and x.dtype.is_float:
        # ONNX does not say what becomes of NaN; the sum of NaNs and zeros is one.
        zero = w.scalar(0, wide.dtype)
        strange = w.where(w.node("Equal", wide, wide, dtype=dtypes.i1), zero, wide)
        made = w.node(
            "Add", made, w.node("ReduceSum", strange, w.vector(axes), shape=shape, keepdims=0)
        )
    return w.cast(made, x.dtype)


def combining_dtype(kind: str, dtype: DType) -> DType:
    """Return the type in which elements are combined: f32 for narrow floats, wide integers."""
    if dtype.is_float and dtype.bits < 32:
        return dtypes.f32
    if kind in ("sum", "prod") or dtype.bits < 32:
        return summing_dtype(dtype)
    return dtype


def identity(kind: str, dtype: DType) -> complex:
    """Return the result over no elements."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype.is_integer:
        return dtype.limits[kind == "min"]
    greatest = 448.0 if dtype is dtypes.f8e4m3 else math.inf
    return greatest if kind == "min" else -greatest


def _logical(w: GraphWriter, op: reduction_ops.Reduce, x: Ref, result: TensorType) -> Ref:
    if not x.dtype.is_bool:
        w.refuse(f"ONNX has no `{op.kind}` over the bits of {x.dtype}")
    numbers = w.cast(x, dtypes.si32)
    if any(x.shape[axis] == 0 for axis in op.axes):
        return w.expand(w.scalar(op.kind == "and", dtypes.i1), result.shape)
    total = reduced(w, "min" if op.kind == "and" else "max", numbers, op.axes)
    return w.cast(w.reshape(total, result.shape), dtypes.i1)


@writes(reduction_ops.Argmax, reduction_ops.Argmin)
def arg_extreme(w: GraphWriter, op: reduction_ops.ArgExtreme, x: Ref) -> Ref:
    """Write where the extreme is: of NaNs, about which ONNX says nothing, the first."""
    name = "ArgMax" if isinstance(op, reduction_ops.Argmax) else "ArgMin"
    result = op.infer(x.type)

    def place(name: str, values: Ref) -> Ref:
        shape, keepdims = result.shape, int(op.keepdims)
        return w.node(name, values, dtype=dtypes.si64, shape=shape, axis=op.axis, keepdims=keepdims)

    wide = ordered(w, x)
    found = place(name, wide)
    if x.dtype.is_float:
        strange = w.cast(w.node("Not", w.node("Equal", wide, wide, dtype=dtypes.i1)), dtypes.si32)
        some = reduced(w, "max", strange, [op.axis])
        some = w.cast(w.reshape(some, result.shape), dtypes.i1)
        found = w.where(some, place("ArgMax", strange), found)
    return w.cast(found, result.dtype)


def ordered(w: GraphWriter, x: Ref) -> Ref:
    """Return `x` in a type of the same order that runtimes compare: f32, f64, si32 or si64."""
    if x.dtype.is_float:
        return w.cast(x, dtypes.f32) if x.dtype.bits < 32 else x
    if x.dtype is dtypes.ui64:
        return x
    return w.cast(x, dtypes.si64 if x.dtype.bits >= 32 else dtypes.si32)


@writes(reduction_ops.Cumulative)
def cumulative(w: GraphWriter, op: reduction_ops.Cumulative, x: Ref) -> Ref:
    """Write running totals along an axis: sums by `CumSum`, others by a loop."""
    accumulator = op.accumulator(x.type)
    own = w.cast(x, accumulator)
    wide = w.cast(own, combining_dtype(op.kind, accumulator))
    if op.kind == "sum":
        axis = w.scalar(op.axis, dtypes.si64)
        exclusive, backwards = int(op.exclusive), int(op.reverse)
        total = w.node("CumSum", wide, axis, exclusive=exclusive, reverse=backwards)
    else:
        total = _scanned(w, op, wide, accumulator)
    return converted(w, w.cast(total, accumulator), op.infer(x.type).dtype)


def _scanned(w: GraphWriter, op: reduction_ops.Cumulative, x: Ref, accumulator: DType) -> Ref:
    if x.shape[op.axis] == 0:
        return x
    line = TensorType(x.dtype, (*x.shape[: op.axis], *x.shape[op.axis + 1 :]))
    start = w.expand(w.scalar(identity(op.kind, accumulator), x.dtype), line.shape)

    def step(state: Ref, element: Ref) -> tuple[list[Ref], list[Ref]]:
        new = w.node(_COMBINED[op.kind], state, element)
        return [new], [state if op.exclusive else new]

    return scan(w, [start], [(x, op.axis)], step, op.reverse)[1][0]


def scan(
    w: GraphWriter,
    carried: Sequence[Ref],
    scanned: Sequence[tuple[Ref, int]],
    step: Callable[..., tuple[list[Ref], list[Ref]]],
    reverse: bool,
) -> tuple[list[Ref], list[Ref]]:
    """Return the last carried values, and what `step` gave, stacked along the axes of `scanned`.

    `step` is called with the carried values and a slice of each of `scanned`, a tensor with the
    axis that is left out. What it gives is stacked along the first of these axes.
    """
    states = [Ref(w.fresh("s"), each.type) for each in carried]
    slices = [
        Ref(w.fresh("x"), TensorType(x.dtype, (*x.shape[:axis], *x.shape[axis + 1 :])))
        for x, axis in scanned
    ]
    with w.inner() as nodes:
        new, given = step(*states, *slices)
        outputs = [w.node("Identity", each) for each in (*new, *given)]
    body = helper.make_graph(
        nodes, w.fresh("body"), list(map(value_info, (*states, *slices))),
        list(map(value_info, outputs)),
    )  # fmt: skip
    (first, axis), *_ = scanned
    steps = first.shape[axis]
    types = [each.type for each in carried]
    for each in given:
        shape = each.shape
        types.append(TensorType(each.dtype, (*shape[:axis], steps, *shape[axis:])))
    results = w.node_of(
        "Scan",
        [*carried, *(x for x, _ in scanned)],
        types,
        body=body,
        num_scan_inputs=len(scanned),
        scan_input_axes=[axis for _, axis in scanned],
        scan_input_directions=[int(reverse)] * len(scanned),
        scan_output_axes=[axis] * len(given),
        scan_output_directions=[int(reverse)] * len(given),
    )
    return results[: len(carried)], results[len(carried) :]


def value_info(ref: Ref, names: Sequence[str] = ()) -> onnx.ValueInfoProto:
    """Return the name and type of a value; sizes that are symbolic stay open, or get `names`."""
    dims = [
        size if type(size) is int else (names[axis] if names else None)
        for axis, size in enumerate(ref.shape)
    ]
    return helper.make_tensor_value_info(ref.name, int(ONNX_TYPES[ref.dtype]), dims)


# The writer of layer normalization.
#
# It is written as the arithmetic that PTIR defines, which takes the mean out twice: runtimes differ
# in how they compute the variance. The functional of that name, which models call, is ONNX's
# `LayerNormalization`.


normalization_ops = op_modules.normalization


@writes(normalization_ops.LayerNorm)
def layer_norm(
    w: GraphWriter, op: normalization_ops.LayerNorm, x: Ref, scale: Ref, bias: Ref
) -> Ref:
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
