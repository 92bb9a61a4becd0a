"""Writers of ops that map floats to integers of few bits and back.

They are written as the arithmetic that PTIR defines: its zero points are integers of 32 bits, and
those of `QuantizeLinear` have the type of the codes.
"""

from __future__ import annotations

import numpy as np

from gptrs.api.programs import DType, dtypes
from gptrs.api.programs import ops as op_modules
from gptrs_onnx.writing.elementwise import converted
from gptrs_onnx.writing.graph_writer import GraphWriter, Ref
from gptrs_onnx.writing.registry import writes

ops = op_modules.quantization


def _for_each(w: GraphWriter, op: ops.Quantization, x: Ref, parameter: Ref) -> Ref:
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


@writes(ops.Quantize)
def quantize(w: GraphWriter, op: ops.Quantize, x: Ref, scale: Ref, zero_point: Ref) -> Ref:
    """Write rounded quotients plus the zero point, clipped."""
    return _quantized(w, op, x, scale, zero_point, op.dtype)


def _quantized(
    w: GraphWriter, op: ops.Quantization, x: Ref, scale: Ref, zero_point: Ref, dtype: DType
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


@writes(ops.Dequantize)
def dequantize(w: GraphWriter, op: ops.Dequantize, q: Ref, scale: Ref, zero_point: Ref) -> Ref:
    """Write differences to the zero point times the scale."""
    return _dequantized(w, op, q, scale, zero_point, op.dtype)


def _dequantized(
    w: GraphWriter, op: ops.Quantization, q: Ref, scale: Ref, zero_point: Ref, dtype: DType
) -> Ref:
    wide = _wide(scale.dtype, dtype)
    codes = w.cast(q, dtypes.si64)
    offset = w.cast(_for_each(w, op, q, zero_point), dtypes.si64)
    difference = w.cast(w.node("Sub", codes, offset, shape=q.shape), wide)
    factors = _for_each(w, op, q, w.cast(scale, wide))
    return w.cast(w.node("Mul", difference, factors, shape=q.shape), dtype)


@writes(ops.DequantizeAffine)
def dequantize_affine(
    w: GraphWriter, op: ops.DequantizeAffine, q: Ref, scale: Ref, bias: Ref
) -> Ref:
    """Write codes times the scale, plus the bias."""
    wide = _wide(scale.dtype, bias.dtype, op.dtype)
    factors, offsets = (_for_each(w, op, q, w.cast(each, wide)) for each in (scale, bias))
    product = w.node("Mul", w.cast(q, wide), factors, shape=q.shape)
    return w.cast(w.node("Add", product, offsets, shape=q.shape), op.dtype)


@writes(ops.Requantize)
def requantize(
    w: GraphWriter,
    op: ops.Requantize,
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


@writes(ops.UnpackBits)
def unpack_bits(w: GraphWriter, op: ops.UnpackBits, packed: Ref) -> Ref:
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
