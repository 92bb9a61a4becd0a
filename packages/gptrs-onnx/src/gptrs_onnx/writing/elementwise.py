"""Writers of ops on elements.

Floats of 8 and 16 bits are computed in f32 and rounded once, as PTIR says: ONNX leaves open how
often a runtime rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from gptrs.api.programs import DType, Op, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.instructions import writes

elementwise_ops = op_modules.elementwise
UNSIGNED: Final = {8: dtypes.ui8, 16: dtypes.ui16, 32: dtypes.ui32, 64: dtypes.ui64}
"""The unsigned integers by their bits."""
_SAME: Final[Mapping[type[Op], str]] = {
    elementwise_ops.Abs: "Abs",
    elementwise_ops.Exp: "Exp",
    elementwise_ops.Log: "Log",
    elementwise_ops.Sqrt: "Sqrt",
    elementwise_ops.Reciprocal: "Reciprocal",
    elementwise_ops.Sin: "Sin",
    elementwise_ops.Cos: "Cos",
    elementwise_ops.Tanh: "Tanh",
    elementwise_ops.Logistic: "Sigmoid",
    elementwise_ops.Erf: "Erf",
    elementwise_ops.Floor: "Floor",
    elementwise_ops.Ceil: "Ceil",
    elementwise_ops.RoundNearestEven: "Round",
    elementwise_ops.Add: "Add",
    elementwise_ops.Sub: "Sub",
    elementwise_ops.Mul: "Mul",
    elementwise_ops.Pow: "Pow",
    elementwise_ops.StopGradient: "Identity",
}
_LOGICAL: Final[Mapping[type[Op], str]] = {
    elementwise_ops.And: "And",
    elementwise_ops.Or: "Or",
    elementwise_ops.Xor: "Xor",
    elementwise_ops.Not: "Not",
}
_COMPARISONS: Final = {
    "lt": "Less",
    "le": "LessOrEqual",
    "eq": "Equal",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
}


def widened(w: GraphWriter, *operands: Ref) -> list[Ref]:
    """Return floats of 8 and 16 bits as f32, anything else as it is."""
    return [
        w.cast(x, dtypes.f32) if x.dtype.is_float and x.dtype.bits < 32 else x for x in operands
    ]


@writes(*(op for op in _SAME if op is not elementwise_ops.StopGradient))
def direct(w: GraphWriter, op: Op, *operands: Ref) -> Ref:
    """Write an op that ONNX has."""
    wide = widened(w, *w.lean(*operands))
    made = w.node(_SAME[type(op)], *wide, shape=operands[0].shape)
    return w.cast(made, operands[0].dtype)


@writes(elementwise_ops.StopGradient)
def identity(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write a value as it is."""
    del op
    return w.node("Identity", x)


@writes(elementwise_ops.Neg)
def neg(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write a negative; that of an unsigned integer wraps."""
    del op
    if x.dtype.kind == "unsigned":
        return w.node("Sub", w.scalar(0, x.dtype), x, shape=x.shape)
    (wide,) = widened(w, x)
    return w.cast(w.node("Neg", wide), x.dtype)


@writes(elementwise_ops.Sign)
def sign(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write the sign; of zeros and NaN the number itself, which runtimes handle differently."""
    del op
    (wide,) = widened(w, x)
    made = w.node("Sign", wide)
    if x.dtype.is_float:
        positive = w.node("Greater", w.node("Abs", wide), w.scalar(0, wide.dtype), dtype=dtypes.i1)
        made = w.where(positive, made, wide)
    return w.cast(made, x.dtype)


@writes(elementwise_ops.Rsqrt)
def rsqrt(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write the reciprocal of the square root."""
    del op
    (wide,) = widened(w, x)
    return w.cast(w.node("Reciprocal", w.node("Sqrt", wide)), x.dtype)


@writes(elementwise_ops.Expm1)
def expm1(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write `(u - 1) * x / log(u)` with `u = e^x`, which is accurate near 0 (Kahan)."""
    del op
    (wide,) = widened(w, x)
    one = w.scalar(1, wide.dtype)
    power = w.node("Exp", wide)
    less = w.node("Sub", power, one)
    quotient = w.node("Div", w.node("Mul", less, wide), w.node("Log", power))
    # Far from 0 nothing is lost: there the quotient would be 0 / 0 or inf / inf.
    far = w.node("Greater", w.node("Abs", wide), w.scalar(1, wide.dtype), dtype=dtypes.i1)
    unmoved = w.node("Equal", power, one, dtype=dtypes.i1)
    return w.cast(w.where(unmoved, wide, w.where(far, less, quotient)), x.dtype)


@writes(elementwise_ops.Log1p)
def log1p(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write `log(u) * x / (u - 1)` with `u = 1 + x`, which is accurate near 0 (Kahan)."""
    del op
    (wide,) = widened(w, x)
    one = w.scalar(1, wide.dtype)
    more = w.node("Add", wide, one)
    plain = w.node("Log", more)
    quotient = w.node("Div", w.node("Mul", plain, wide), w.node("Sub", more, one))
    far = w.node("Greater", w.node("Abs", wide), w.scalar(0.5, wide.dtype), dtype=dtypes.i1)
    unmoved = w.node("Equal", more, one, dtype=dtypes.i1)
    return w.cast(w.where(unmoved, wide, w.where(far, plain, quotient)), x.dtype)


@writes(elementwise_ops.IsFinite)
def is_finite(w: GraphWriter, op: Op, x: Ref) -> Ref:
    """Write whether the magnitude is below infinity."""
    del op
    (wide,) = widened(w, x)
    return w.node("Less", w.node("Abs", wide), w.scalar(math.inf, wide.dtype), dtype=dtypes.i1)


@writes(elementwise_ops.And, elementwise_ops.Or, elementwise_ops.Xor, elementwise_ops.Not)
def bits(w: GraphWriter, op: Op, *operands: Ref) -> Ref:
    """Write an op on truth values or on the bits of integers."""
    name = _LOGICAL[type(op)]
    return w.node(name if operands[0].dtype.is_bool else f"Bitwise{name}", *operands)


@writes(elementwise_ops.Maximum, elementwise_ops.Minimum)
def extreme(w: GraphWriter, op: Op, lhs: Ref, rhs: Ref) -> Ref:
    """Write the larger or smaller operand; NaN if either is."""
    larger = isinstance(op, elementwise_ops.Maximum)
    if lhs.dtype.is_bool:
        return w.node("Or" if larger else "And", lhs, rhs)
    wide = widened(w, *w.lean(lhs, rhs))
    return w.cast(w.node("Max" if larger else "Min", *wide, shape=lhs.shape), lhs.dtype)


@writes(elementwise_ops.Div)
def div(w: GraphWriter, op: Op, lhs: Ref, rhs: Ref) -> Ref:
    """Write a quotient; one of integers by -1 is the negative, which wraps."""
    del op
    wide, by = widened(w, *w.lean(lhs, rhs))
    if lhs.dtype.kind != "signed" or _never(w, by, -1):
        return w.cast(w.node("Div", wide, by, shape=lhs.shape), lhs.dtype)
    turned, divisor = _without_minus_one(w, by)
    made = w.node("Div", wide, divisor, shape=lhs.shape)
    return w.where(turned, w.node("Neg", made), made)


@writes(elementwise_ops.Rem)
def rem(w: GraphWriter, op: Op, lhs: Ref, rhs: Ref) -> Ref:
    """Write the remainder with the sign of `lhs`, as C's `fmod`."""
    del op
    wide, by = widened(w, *w.lean(lhs, rhs))
    if lhs.dtype.kind == "signed" and not _never(w, by, -1):
        by = _without_minus_one(w, by)[1]
    return w.cast(w.node("Mod", wide, by, shape=lhs.shape, fmod=1), lhs.dtype)


def _never(w: GraphWriter, x: Ref, value: int) -> bool:
    """Return whether `x` is a constant without this element."""
    known = w.elements(x)
    return known is not None and not bool(np.any(known == value))


def _without_minus_one(w: GraphWriter, divisor: Ref) -> tuple[Ref, Ref]:
    """Return where a divisor is -1, and the divisor with 1 there.

    The least integer divided by -1 ends the process of some runtimes.
    """
    turned = w.node("Equal", divisor, w.scalar(-1, divisor.dtype), dtype=dtypes.i1)
    return turned, w.where(turned, w.scalar(1, divisor.dtype), divisor)


@writes(elementwise_ops.ShiftLeft)
def shift_left(w: GraphWriter, op: Op, x: Ref, by: Ref) -> Ref:
    """Write a shift up by `by` bits."""
    del op
    return w.cast(_shifted(w, _unsigned(w, x), by, "LEFT"), x.dtype)


@writes(elementwise_ops.ShiftRightLogical)
def shift_right_logical(w: GraphWriter, op: Op, x: Ref, by: Ref) -> Ref:
    """Write a shift down by `by` bits, zeros entering."""
    del op
    return w.cast(_shifted(w, _unsigned(w, x), by, "RIGHT"), x.dtype)


@writes(elementwise_ops.ShiftRightArithmetic)
def shift_right_arithmetic(w: GraphWriter, op: Op, x: Ref, by: Ref) -> Ref:
    """Write a shift down by `by` bits, the sign entering: that of the complement if negative."""
    del op
    if x.dtype.kind == "unsigned":
        return _shifted(w, x, by, "RIGHT")
    negative = w.node("Less", x, w.scalar(0, x.dtype), dtype=dtypes.i1)
    plain = w.where(negative, w.node("BitwiseNot", x), x)
    down = w.cast(_shifted(w, _unsigned(w, plain), by, "RIGHT"), x.dtype)
    return w.where(negative, w.node("BitwiseNot", down), down)


def _unsigned(w: GraphWriter, x: Ref) -> Ref:
    if x.dtype.bits not in UNSIGNED:
        w.refuse(f"ONNX's `BitShift` takes no {x.dtype}")
    return w.cast(x, UNSIGNED[x.dtype.bits])


def _shifted(w: GraphWriter, x: Ref, by: Ref, direction: str) -> Ref:
    """Return `x` shifted; 0 for counts that are negative or not below the width."""
    count = _unsigned(w, by)  # a negative count is a huge one
    width = w.scalar(x.dtype.bits, x.dtype)
    inside = w.node("Less", count, width, dtype=dtypes.i1)
    zero = w.scalar(0, x.dtype)
    made = w.node("BitShift", x, w.where(inside, count, zero), direction=direction)
    return w.where(inside, made, zero)


@writes(elementwise_ops.Compare)
def compare(w: GraphWriter, op: elementwise_ops.Compare, lhs: Ref, rhs: Ref) -> Ref:
    """Write a comparison."""
    wide = widened(w, *w.lean(lhs, rhs))
    if op.direction == "ne":
        return w.node("Not", w.node("Equal", *wide, dtype=dtypes.i1, shape=lhs.shape))
    if lhs.dtype.is_bool and op.direction != "eq":
        wide = [w.cast(x, dtypes.si32) for x in wide]
    return w.node(_COMPARISONS[op.direction], *wide, dtype=dtypes.i1, shape=lhs.shape)


@writes(elementwise_ops.Select)
def select(w: GraphWriter, op: Op, predicate: Ref, x: Ref, y: Ref) -> Ref:
    """Write a choice for each element."""
    del op
    return w.where(predicate, x, y)


@writes(elementwise_ops.Clamp)
def clamp(w: GraphWriter, op: Op, x: Ref, low: Ref, high: Ref) -> Ref:
    """Write the smaller of `high` and the larger of `x` and `low`."""
    del op
    wide, least, greatest = widened(w, x, low, high)
    return w.cast(w.node("Min", w.node("Max", wide, least), greatest), x.dtype)


@writes(elementwise_ops.Bitcast)
def bitcast(w: GraphWriter, op: elementwise_ops.Bitcast, x: Ref) -> Ref:
    """Write integers read as others of their width, which `Cast` does by wrapping."""
    if not (x.dtype.is_integer and op.dtype.is_integer):
        w.refuse(f"ONNX does not read the bits of {x.dtype} as {op.dtype}")
    return w.cast(x, op.dtype)


@writes(elementwise_ops.Cast)
def cast(w: GraphWriter, op: elementwise_ops.Cast, x: Ref) -> Ref:
    """Write a conversion by PTIR's rules: what does not fit an integer type saturates."""
    return converted(w, x, op.dtype)


def converted(w: GraphWriter, x: Ref, dtype: DType) -> Ref:
    """Return `x` as `dtype`, by PTIR's rules."""
    if x.dtype is dtype:
        return x
    if dtype.is_integer and x.dtype.is_float:
        return _float_to_integer(w, x, dtype)
    if dtype.is_integer and x.dtype.is_integer:
        return _narrowed(w, x, dtype)
    if dtype.is_bool and x.dtype.is_float:
        (wide,) = widened(w, x)
        return w.node("Not", w.node("Equal", wide, w.scalar(0, wide.dtype), dtype=dtypes.i1))
    return w.cast(x, dtype)


def _narrowed(w: GraphWriter, x: Ref, dtype: DType) -> Ref:
    """Return integers clipped to the limits of another type."""
    (least, greatest), (own_least, own_greatest) = dtype.limits, x.dtype.limits
    if x.dtype.bits < 8:
        return _narrowed(w, w.cast(x, dtypes.si32), dtype)
    if least > own_least:
        x = w.node("Max", x, w.scalar(least, x.dtype))
    if greatest < own_greatest:
        x = w.node("Min", x, w.scalar(greatest, x.dtype))
    return w.cast(x, dtype)


def _float_to_integer(w: GraphWriter, x: Ref, dtype: DType) -> Ref:
    """Return floats truncated; NaN is 0, and what ONNX leaves open, numbers too large, saturates.

    The limits of wide types are no floats: the first numbers beyond them are.
    """
    (wide,) = widened(w, x)
    least, greatest = dtype.limits
    number = w.node("Equal", wide, wide, dtype=dtypes.i1)
    real = w.where(number, wide, w.scalar(0, wide.dtype))
    beyond = np.ldexp(1.0, greatest.bit_length())
    above = w.node("GreaterOrEqual", real, w.scalar(beyond, wide.dtype), dtype=dtypes.i1)
    below = w.node("Less", real, w.scalar(float(least), wide.dtype), dtype=dtypes.i1)
    outside = w.node("Or", above, below)
    inside = w.where(outside, w.scalar(0, wide.dtype), real)
    target = dtype if dtype.bits >= 8 else dtypes.si32
    made = w.cast(inside, target)
    made = w.where(above, w.scalar(greatest, target), made)
    return w.cast(w.where(below, w.scalar(least, target), made), dtype)


# Writers of ops that map floats to integers of few bits and back.
#
# They are written as the arithmetic that PTIR defines: its zero points are integers of 32 bits, and
# those of `QuantizeLinear` have the type of the codes.


quantization_ops = op_modules.quantization


def _for_each(w: GraphWriter, op: quantization_ops.Quantization, x: Ref, parameter: Ref) -> Ref:
    """Return a scale, zero point or bias for each element of `x`."""
    if parameter.rank == 0 or op.axis is None:
        return parameter
    before, after = x.shape[: op.axis], x.shape[op.axis + 1 :]
    size = x.shape[op.axis]
    if op.group_size is None:
        return w.reshape(parameter, (*[1] * len(before), size, *[1] * len(after)))
    groups = w.reshape(parameter, (*before, size // op.group_size, 1, *after))
    repeated = w.expand(groups, (*before, size // op.group_size, op.group_size, *after))
    return w.reshape(repeated, x.shape)


def _wide(*floats: DType) -> DType:
    return dtypes.f64 if dtypes.f64 in floats else dtypes.f32


@writes(quantization_ops.Quantize)
def quantize(
    w: GraphWriter, op: quantization_ops.Quantize, x: Ref, scale: Ref, zero_point: Ref
) -> Ref:
    """Write rounded quotients plus the zero point, clipped."""
    return _quantized(w, op, x, scale, zero_point, op.dtype)


def _quantized(
    w: GraphWriter,
    op: quantization_ops.Quantization,
    x: Ref,
    scale: Ref,
    zero_point: Ref,
    dtype: DType,
) -> Ref:
    wide = _wide(x.dtype, scale.dtype)
    factors = _for_each(w, op, x, w.cast(scale, wide))
    quotient = w.node("Round", w.node("Div", w.cast(x, wide), factors, shape=x.shape))
    number = w.node("Equal", quotient, quotient, dtype=dtypes.i1)
    real = w.where(number, quotient, w.scalar(0, wide))
    offset = w.cast(_for_each(w, op, x, zero_point), dtypes.f64)
    # Integers of 32 bits and their sums are exact in f64; larger quotients saturate anyway.
    total = w.node("Add", w.cast(real, dtypes.f64), offset, shape=x.shape)
    return converted(w, total, dtype)


@writes(quantization_ops.Dequantize)
def dequantize(
    w: GraphWriter, op: quantization_ops.Dequantize, q: Ref, scale: Ref, zero_point: Ref
) -> Ref:
    """Write differences to the zero point times the scale."""
    return _dequantized(w, op, q, scale, zero_point, op.dtype)


def _dequantized(
    w: GraphWriter,
    op: quantization_ops.Quantization,
    q: Ref,
    scale: Ref,
    zero_point: Ref,
    dtype: DType,
) -> Ref:
    wide = _wide(scale.dtype, dtype)
    codes = w.cast(q, dtypes.si64)
    offset = w.cast(_for_each(w, op, q, zero_point), dtypes.si64)
    difference = w.cast(w.node("Sub", codes, offset, shape=q.shape), wide)
    factors = _for_each(w, op, q, w.cast(scale, wide))
    return w.cast(w.node("Mul", difference, factors, shape=q.shape), dtype)


@writes(quantization_ops.DequantizeAffine)
def dequantize_affine(
    w: GraphWriter, op: quantization_ops.DequantizeAffine, q: Ref, scale: Ref, bias: Ref
) -> Ref:
    """Write codes times the scale, plus the bias."""
    wide = _wide(scale.dtype, bias.dtype, op.dtype)
    factors, offsets = (_for_each(w, op, q, w.cast(each, wide)) for each in (scale, bias))
    product = w.node("Mul", w.cast(q, wide), factors, shape=q.shape)
    return w.cast(w.node("Add", product, offsets, shape=q.shape), op.dtype)


@writes(quantization_ops.Requantize)
def requantize(
    w: GraphWriter,
    op: quantization_ops.Requantize,
    q: Ref,
    scale_in: Ref,
    zero_in: Ref,
    scale_out: Ref,
    zero_out: Ref,
) -> Ref:
    """Write what was quantized with one scale quantized with another one."""
    wide = _wide(scale_in.dtype, scale_out.dtype)
    real = _dequantized(w, op, q, scale_in, zero_in, wide)
    return _quantized(w, op, real, scale_out, zero_out, op.dtype)


@writes(quantization_ops.UnpackBits)
def unpack_bits(w: GraphWriter, op: quantization_ops.UnpackBits, packed: Ref) -> Ref:
    """Write the integers in a stream of bits: of each byte its bits, of each integer their sum."""
    result = op.infer(packed.type)
    if op.bits == 8:
        return packed
    before, after = packed.shape[: op.axis], packed.shape[op.axis + 1 :]
    tail = [1] * len(after)
    # Of bytes that hold whole integers, each is shifted out at once.
    step = op.bits if 8 % op.bits == 0 else 1
    shifts = w.constant(np.arange(0, 8, step, dtype=np.uint8).reshape(-1, *tail))
    bytes_ = w.reshape(packed, (*packed.shape[: op.axis + 1], 1, *after))
    parts = (*packed.shape[: op.axis + 1], 8 // step, *after)
    mask = w.scalar(2**step - 1, dtypes.ui8)
    shifted = w.node(
        "BitShift", w.expand(bytes_, parts), w.expand(shifts, parts), direction="RIGHT"
    )
    pieces = w.node("BitwiseAnd", shifted, mask)
    if step == op.bits:
        return w.reshape(pieces, result.shape)
    grouped = w.reshape(pieces, (*before, result.shape[op.axis], op.bits, *after))
    weights = w.constant((2 ** np.arange(op.bits)).astype(np.int32).reshape(-1, *tail))
    products = w.node("Mul", w.cast(grouped, dtypes.si32), weights)
    total = w.node("ReduceSum", products, w.vector([op.axis + 1]), shape=result.shape, keepdims=0)
    return w.cast(total, dtypes.ui8)
