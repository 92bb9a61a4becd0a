"""Instructions written in order, by the writers of their ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from gptrs.api import UnsupportedError
from gptrs.api.passes import FoundCall, find_calls, pattern
from gptrs.api.programs import Instruction, Op, Region, Value, dtypes
from gptrs.ir.symbolic_dim import UnknownSizeError
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref

# Chains of ops for which ONNX has one operator: convolutions, softmax, GELU, ReLU.
#
# They are found as backends find them: by the patterns of the functionals that models call.


_Pairs = tuple[tuple[int, int], ...]


def calls_in(region: Region) -> dict[Value, FoundCall]:
    """Return the calls that ONNX has an operator for, by result; of two that overlap the larger."""
    found: dict[Value, FoundCall] = {}
    inner: set[Value] = set()
    for name in _WRITERS:
        for call in find_calls(pattern(name), region):
            if call.result.type.dtype not in (dtypes.f32, dtypes.f64):
                continue  # narrow floats are rounded in between
            if call.result not in found and call.result not in inner:
                found[call.result] = call
                inner.update(
                    value
                    for made in call.made
                    for value in made.results
                    if value is not call.result
                )
    return found


def written_call(w: GraphWriter, call: FoundCall) -> Ref:
    """Write a call as one operator, between transposes where it needs them."""
    w.op = call.pattern
    operands: dict[str, Ref] = {}
    for name, bound in call.operands.items():
        value = w.values[bound.value]
        operands[name] = (
            value if bound.permutation is None else w.transpose(value, bound.permutation)
        )
    made = _WRITERS[call.pattern](w, call, operands)
    assert made.type == call.result.type, f"{call.pattern}: {made.type}"
    return made


def _conv2d(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    """Write a convolution [B, H, W, C], which ONNX has channels first."""
    x, weight = operands["x"], operands["weight"]
    layout = cast("str", call.attributes.get("layout", "oihw"))
    kernel = w.transpose(weight, [layout.index(axis) for axis in "oihw"])
    groups = cast("int", call.attributes.get("groups", 1))
    if call.pattern == "depthwise_conv2d":
        groups = x.shape[3]
        if layout == "hwio":  # [KH, KW, C, M]
            kh, kw, channels, multiplier = weight.shape
            kernel = w.transpose(weight, (2, 3, 0, 1))
            kernel = w.reshape(kernel, (channels * multiplier, 1, kh, kw))
    (top, bottom), (left, right) = cast("_Pairs", call.attributes.get("padding", ((0, 0), (0, 0))))
    batch, height, width, outputs = call.result.type.shape
    made = w.node(
        "Conv",
        w.transpose(x, (0, 3, 1, 2)),
        kernel,
        operands.get("bias"),
        shape=(batch, outputs, height, width),
        kernel_shape=list(kernel.shape[2:]),
        strides=list(cast("Sequence[int]", call.attributes.get("stride", (1, 1)))),
        dilations=list(cast("Sequence[int]", call.attributes.get("dilation", (1, 1)))),
        pads=[top, left, bottom, right],
        group=groups,
    )
    return w.transpose(made, (0, 2, 3, 1))


def _softmax(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    x = operands["x"]
    axis = cast("int", call.attributes["axis"])
    return w.node("LogSoftmax" if call.pattern == "log_softmax" else "Softmax", x, axis=axis)


def _safe_softmax(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    """Write a softmax and 0 for its slices of nothing but -inf, where ONNX has NaN."""
    x, made = operands["x"], _softmax(w, call, operands)
    axis = cast("int", call.attributes["axis"])
    if x.shape[axis] == 0:
        return made
    shape = [1 if place == axis else size for place, size in enumerate(x.shape)]
    least, along = w.scalar(-math.inf, x.dtype), w.vector([axis])
    # A runtime's maximum may pass over NaN, its sum does not.
    peak, total = (
        w.node(kind, x, along, shape=shape, keepdims=1) for kind in ("ReduceMax", "ReduceSum")
    )
    low, alone = (w.node("Equal", each, least, dtype=dtypes.i1) for each in (peak, total))
    blind = w.node("And", low, alone)
    return w.node("Where", blind, w.scalar(0, x.dtype), made, type=made.type)


def _gelu(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    approximate = cast("str", call.attributes["approximate"])
    return w.node("Gelu", operands["x"], approximate=approximate)


def _relu(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    del call
    return w.node("Relu", operands["x"])


def _layer_norm(w: GraphWriter, call: FoundCall, operands: dict[str, Ref]) -> Ref:
    """Write a normalization of the last axis; ONNX asks for a scale."""
    x = operands["x"]
    epsilon = cast("float", call.attributes["epsilon"])
    scale = operands.get("weight") or w.expand(w.scalar(1, x.dtype), x.shape[-1:])
    inputs = (x, scale, operands.get("bias"))
    return w.node("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)


_WRITERS: Final[dict[str, Callable[[GraphWriter, FoundCall, dict[str, Ref]], Ref]]] = {
    "conv2d": _conv2d,
    "depthwise_conv2d": _conv2d,
    "safe_softmax": _safe_softmax,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "relu": _relu,
}
"""The functionals with an operator of their own, those that hold others first."""


# The table of writers: what turns an instruction into nodes, by the class of its op.


Writer: TypeAlias = Callable[..., Ref | list[Ref]]
"""Called with the `GraphWriter`, the op and its operands; returns the results."""
WRITERS: Final[dict[type[Op], Writer]] = {}


def writes(*op_classes: type[Op]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function writes these ops."""

    def register(writer: Callable[..., Any]) -> Callable[..., Any]:
        for op_class in op_classes:
            WRITERS[op_class] = writer
        return writer

    return register


def region_results(w: GraphWriter, region: Region, operands: Sequence[Ref]) -> list[Ref]:
    """Write all instructions of a region that its results need; return these."""
    outer = w.values
    w.values = dict(zip(region.params, operands, strict=True))
    try:
        calls = calls_in(region)
        needed = _needed(region, calls)
        for instruction in region.instructions:
            if needed.isdisjoint(instruction.results):
                continue
            call = calls.get(instruction.results[0])
            try:
                if call is not None:
                    w.values[call.result] = written_call(w, call)
                else:
                    _write(w, instruction)
            except UnknownSizeError as error:
                w.refuse(f"sizes are free, and it {error.question}")
        return [w.values[result] for result in region.results]
    finally:
        w.values = outer


def _needed(region: Region, calls: Mapping[Value, FoundCall]) -> set[Value]:
    """Return the values that the results need, and nothing that is only inside a known call."""
    needed = set(region.results)
    for instruction in reversed(region.instructions):
        if not needed.isdisjoint(instruction.results):
            call = calls.get(instruction.results[0])
            if call is None:
                needed.update(instruction.operands)
            else:
                needed.update(bound.value for bound in call.operands.values())
    return needed


def _write(w: GraphWriter, instruction: Instruction) -> None:
    op = instruction.op
    w.op = op.name
    writer = WRITERS.get(type(op))
    if writer is None:
        raise UnsupportedError(f"`{op.name}` cannot be written as ONNX: it has no such operator")
    operands = [w.values[each] for each in instruction.operands]
    regions = {"regions": instruction.regions} if instruction.regions else {}
    made = writer(w, op, *operands, **regions)
    results = made if isinstance(made, list) else [made]
    for value, ref in zip(instruction.results, results, strict=True):
        assert ref.type == value.type, f"{op.name}: {ref.type} for {value.type}"
        w.values[value] = ref
