"""Emitters of the ops that map floats to integers of few bits and back."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import quantization as ops
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft, StepDeclined
from gptrs_conformance.program_generator.elements import Style
from gptrs_conformance.program_generator.emitters import emits

STYLES: tuple[Style, ...] = ("mild", "mild", "ordinary", "special")


def _granularity(draft: Draft, shape: Shape) -> tuple[int | None, int | None]:
    """Return an axis and a group size, or none."""
    if not shape or draft.dice.chance(0.3):
        return None, None
    axis = draft.dice.below(len(shape))
    sizes = [size for size in range(1, shape[axis] + 1) if shape[axis] % size == 0]
    return axis, draft.dice.pick(sizes) if sizes and draft.dice.chance(0.5) else None


def _parameters(draft: Draft, shape: Shape) -> tuple[Value, Value]:
    """Return a scale of any float type and a zero point, one of them at times tensor-wide."""
    scale, zero_point = (() if draft.dice.chance(0.1) else shape for _ in range(2))
    type_ = TensorType(dtypes.si32, zero_point)
    return _scale(draft, scale), draft.constant(type_, draft.dice.pick(STYLES))


def _scale(draft: Draft, shape: Shape) -> Value:
    floats = [dtype for dtype in dtypes.FLOATS if dtype in draft.rules.dtypes]
    if not floats:
        raise StepDeclined
    dtype = dtypes.f32 if dtypes.f32 in floats and draft.dice.chance(0.5) else None
    type_ = TensorType(dtype or draft.dice.pick(floats), shape)
    if draft.dice.chance(0.7):
        return draft.constant(type_, draft.dice.pick(STYLES))
    return draft.like(type_, exact=True)


def _target(draft: Draft, choices: tuple[DType, ...]) -> DType:
    used = [dtype for dtype in choices if dtype in draft.palette]
    return draft.dice.pick(used if used and draft.dice.chance(0.5) else choices)


@emits(ops.Quantize, dtypes=dtypes.FLOATS, weight=2)
def quantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of an exact operand, per tensor, axis or group."""
    x = draft.operand(dtype, exact=True)
    target = _target(draft, ops.QUANTIZED)
    quantize = ops.Quantize(target, *_granularity(draft, x.type.shape))
    draft.emit(quantize, x, *_parameters(draft, quantize.parameter_shape(x.type)))


@emits(ops.Dequantize, dtypes=ops.QUANTIZED, weight=2)
def dequantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """To any float type, exact since the scale is."""
    x = draft.operand(dtype)
    target = _target(draft, dtypes.FLOATS)
    dequantize = ops.Dequantize(target, *_granularity(draft, x.type.shape))
    draft.emit(dequantize, x, *_parameters(draft, dequantize.parameter_shape(x.type)))


@emits(ops.DequantizeAffine, dtypes=ops.QUANTIZED, weight=2)
def affine_dequantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """To any float type, with a scale and a bias that are exact."""
    x = draft.operand(dtype)
    target = _target(draft, dtypes.FLOATS)
    dequantize = ops.DequantizeAffine(target, *_granularity(draft, x.type.shape))
    shape = dequantize.parameter_shape(x.type)
    draft.emit(dequantize, x, _scale(draft, shape), _scale(draft, shape))


@emits(ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpacked_bits(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis whose bits a width divides: 8, and those that 8 divides, always do."""
    x = draft.operand(dtype)
    if not x.type.rank:
        raise StepDeclined
    axis = draft.dice.below(x.type.rank)
    widths = [bits for bits in range(1, 9) if 8 * x.type.shape[axis] % bits == 0]
    draft.emit(ops.UnpackBits(draft.dice.pick(widths), axis), x)


@emits(ops.Requantize, dtypes=ops.QUANTIZED)
def requantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Between any two; either may be for the whole tensor."""
    x = draft.operand(dtype)
    target = _target(draft, ops.QUANTIZED)
    requantize = ops.Requantize(target, *_granularity(draft, x.type.shape))
    shape = requantize.parameter_shape(x.type)
    pairs = [_parameters(draft, () if draft.dice.chance(0.2) else shape) for _ in ("in", "out")]
    draft.emit(requantize, x, *pairs[0], *pairs[1])
