"""Writers of ops that combine the elements along some axes: into one, or into running totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import onnx
from onnx import helper

from gptrs.api.programs import DType, TensorType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.element_types import ONNX_TYPES
from gptrs_onnx.writing.contraction import summing_dtype
from gptrs_onnx.writing.elementwise import converted, integer_limits
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.reduction
_REDUCTIONS: Final = {
    "sum": "ReduceSum",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
}
_COMBINED: Final = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min"}


@writes(ops.Reduce)
def reduce(w: GraphWriter, op: ops.Reduce, x: Ref) -> Ref:
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
        return integer_limits(dtype)[kind == "min"]
    greatest = 448.0 if dtype is dtypes.f8e4m3 else math.inf
    return greatest if kind == "min" else -greatest


def _logical(w: GraphWriter, op: ops.Reduce, x: Ref, result: TensorType) -> Ref:
    if not x.dtype.is_bool:
        w.refuse(f"ONNX has no `{op.kind}` over the bits of {x.dtype}")
    numbers = w.cast(x, dtypes.si32)
    if any(x.shape[axis] == 0 for axis in op.axes):
        return w.expand(w.scalar(op.kind == "and", dtypes.i1), result.shape)
    total = reduced(w, "min" if op.kind == "and" else "max", numbers, op.axes)
    return w.cast(w.reshape(total, result.shape), dtypes.i1)


@writes(ops.Argmax, ops.Argmin)
def arg_extreme(w: GraphWriter, op: ops.ArgExtreme, x: Ref) -> Ref:
    """Write where the extreme is: of NaNs, about which ONNX says nothing, the first."""
    name = "ArgMax" if isinstance(op, ops.Argmax) else "ArgMin"
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


@writes(ops.Cumulative)
def cumulative(w: GraphWriter, op: ops.Cumulative, x: Ref) -> Ref:
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


def _scanned(w: GraphWriter, op: ops.Cumulative, x: Ref, accumulator: DType) -> Ref:
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
