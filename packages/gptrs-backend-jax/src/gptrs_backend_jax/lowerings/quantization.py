"""Lowerings of the ops that map floats to integers of few bits and back."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Op, TensorType, dtypes, ops
from gptrs_backend_jax import typed_lax
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import held, integer_limits
from gptrs_backend_jax.lowering import TABLE, LoweringContext
from gptrs_backend_jax.rounding import unfused

quantization = ops.quantization
QUANTIZED = [dtype for dtype in dtypes.INTEGERS if dtype.bits <= 32]

FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits, whatever zero point is added to it."""


@TABLE.register(quantization.Quantize, dtypes=dtypes.FLOATS)
def quantize(
    op: quantization.Quantize, ctx: LoweringContext, x: Array, scale: Array, zero_point: Array
) -> Array:
    """Divide by the scale, round half to even, add the zero point, saturate."""
    of_x, of_scale, _ = (operand.dtype for operand in ctx.operands)
    compute = quantization.computing_dtype(of_x, of_scale)
    scales = _spread(op, convert(scale, of_scale, compute), x)
    zero_points = _spread(op, zero_point, x)
    return _quantized(convert(x, of_x, compute), scales, zero_points, op.dtype)


@TABLE.register(quantization.Dequantize, dtypes=QUANTIZED)
def dequantize(
    op: quantization.Dequantize, ctx: LoweringContext, q: Array, scale: Array, zero_point: Array
) -> Array:
    """Subtract the zero point, multiply by the scale, round to the result type."""
    of_q, of_scale, _ = ctx.operands
    compute = quantization.computing_dtype(of_scale.dtype, op.dtype)
    scales = _spread(op, convert(scale, of_scale.dtype, compute), q)
    value = _dequantized(of_q, q, scales, _spread(op, zero_point, q), compute)
    return convert(value, compute, op.dtype)


@TABLE.register(quantization.DequantizeAffine, dtypes=QUANTIZED)
def dequantize_affine(
    op: quantization.DequantizeAffine, ctx: LoweringContext, q: Array, scale: Array, bias: Array
) -> Array:
    """Multiply by the scale, add the bias, round to the result type."""
    _, of_scale, of_bias = (operand.dtype for operand in ctx.operands)
    compute = quantization.computing_dtype(of_scale, of_bias, op.dtype)
    scales = _spread(op, convert(scale, of_scale, compute), q)
    biases = _spread(op, convert(bias, of_bias, compute), q)
    product = lax.convert_element_type(q, compute.numpy) * scales
    return convert(unfused(product) + biases, compute, op.dtype)


@TABLE.register(quantization.Requantize, dtypes=QUANTIZED)
def requantize(
    op: quantization.Requantize,
    ctx: LoweringContext,
    q: Array,
    scale_in: Array,
    zero_point_in: Array,
    scale_out: Array,
    zero_point_out: Array,
) -> Array:
    """Dequantize with the old scale and zero point, quantize with the new ones."""
    of_q, of_in, _, of_out, _ = ctx.operands
    compute = quantization.computing_dtype(of_in.dtype, of_out.dtype)
    old = _spread(op, convert(scale_in, of_in.dtype, compute), q)
    new = _spread(op, convert(scale_out, of_out.dtype, compute), q)
    value = _dequantized(of_q, q, old, _spread(op, zero_point_in, q), compute)
    return _quantized(value, new, _spread(op, zero_point_out, q), op.dtype)


@TABLE.register(quantization.UnpackBits, dtypes=[dtypes.ui8])
def unpack_bits(op: quantization.UnpackBits, ctx: LoweringContext, packed: Array) -> Array:
    """Take each integer out of the one or two bytes in which its bits are."""
    axis, bits = op.axis, op.bits
    if bits == 8:
        return packed
    count = ctx.result.shape[axis]
    if not ctx.result.size:
        return typed_lax.zeros(ctx.result.shape, np.uint8)
    if 8 % bits == 0:
        return _unpacked_evenly(packed, bits, axis, ctx.result.shape)
    first_bits = np.arange(count) * bits
    wide = lax.convert_element_type(packed, np.uint16)
    following = lax.concatenate(
        [lax.slice_in_dim(wide, 1, None, axis=axis), lax.full_like(_first(wide, axis), 0)], axis
    )
    pairs = jnp.take(wide | (following << 8), first_bits // 8, axis=axis)
    side = [1] * packed.ndim
    side[axis] = count
    shifts = typed_lax.array((first_bits % 8).astype(np.uint16).reshape(side))
    return lax.convert_element_type((pairs >> shifts) & (2**bits - 1), np.uint8)


def _first(x: Array, axis: int) -> Array:
    return lax.slice_in_dim(x, 0, min(1, x.shape[axis]), axis=axis)


def _unpacked_evenly(packed: Array, bits: int, axis: int, shape: tuple[int, ...]) -> Array:
    """Write the 8 / bits integers of each byte side by side."""
    split = (*packed.shape[: axis + 1], 8 // bits, *packed.shape[axis + 1 :])
    axes = [number for number in range(len(split)) if number != axis + 1]
    whole = typed_lax.broadcast_in(packed, split, axes)
    shifts = typed_lax.iota(np.uint8, split, axis + 1) * bits
    return lax.reshape(lax.shift_right_logical(whole, shifts) & (2**bits - 1), shape)


def _quantized(value: Array, scale: Array, zero_point: Array, dtype: DType) -> Array:
    rounded = lax.round(value / scale, lax.RoundingMethod.TO_NEAREST_EVEN)
    number = lax.select(rounded != rounded, lax.full_like(rounded, 0), rounded)
    far = np.array(FAR_OUTSIDE, value.dtype)
    bounded = lax.clamp(-far, number, far)
    whole = lax.convert_element_type(bounded, np.int64)
    total = whole + lax.convert_element_type(zero_point, np.int64)
    low, high = (np.array(limit, np.int64) for limit in integer_limits(dtype))
    return lax.convert_element_type(lax.clamp(low, total, high), held(dtype))


def _dequantized(
    of_q: TensorType, q: Array, scale: Array, zero_point: Array, compute: DType
) -> Array:
    # Differences of small integers fit 32 bits unless the zero point is far outside of them, and
    # 64-bit ones are exact always.
    difference = lax.convert_element_type(q, np.int64) - lax.convert_element_type(
        zero_point, np.int64
    )
    return lax.convert_element_type(difference, compute.numpy) * scale


def _spread(op: Op, parameter: Array, x: Array) -> Array:
    """Return a parameter in the shape of `x`: one per tensor, channel or group."""
    axis: int | None = getattr(op, "axis", None)
    group: int | None = getattr(op, "group_size", None)
    if axis is None or parameter.ndim == 0:
        return typed_lax.broadcast_to(parameter, x.shape)
    if group is None:
        return typed_lax.broadcast_in(parameter, x.shape, (axis,))
    split = (*x.shape[:axis], x.shape[axis] // group, group, *x.shape[axis + 1 :])
    axes = [number for number in range(len(split)) if number != axis + 1]
    return lax.reshape(typed_lax.broadcast_in(parameter, split, axes), x.shape)
