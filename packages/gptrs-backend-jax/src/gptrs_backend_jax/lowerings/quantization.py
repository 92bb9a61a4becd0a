"""Lowerings of the ops that map floats to integers of few bits and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Op, TensorType, dtypes, ops
from gptrs.api.programs import dtypes as types
from gptrs.api.programs import random_constants as numbers
from gptrs_backend_jax import lowering
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import held
from gptrs_backend_jax.lowering import TABLE, LoweringContext, unfused

quantization = ops.quantization
QUANTIZED = [dtype for dtype in dtypes.INTEGERS if dtype.bits <= 32]

FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits plus any zero point."""


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
    """Extract each integer from the one or two bytes that contain its bits."""
    axis, bits = op.axis, op.bits
    if bits == 8:
        return packed
    count = ctx.result.shape[axis]
    if not ctx.result.size:
        return lowering.zeros(ctx.result.shape, np.uint8)
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
    shifts = lowering.array((first_bits % 8).astype(np.uint16).reshape(side))
    return lax.convert_element_type((pairs >> shifts) & (2**bits - 1), np.uint8)


def _first(x: Array, axis: int) -> Array:
    return lax.slice_in_dim(x, 0, min(1, x.shape[axis]), axis=axis)


def _unpacked_evenly(packed: Array, bits: int, axis: int, shape: tuple[int, ...]) -> Array:
    """Write the 8 / bits integers of each byte side by side."""
    split = (*packed.shape[: axis + 1], 8 // bits, *packed.shape[axis + 1 :])
    axes = [number for number in range(len(split)) if number != axis + 1]
    whole = lowering.broadcast_in(packed, split, axes)
    shifts = lowering.iota(np.uint8, split, axis + 1) * bits
    return lax.reshape(lax.shift_right_logical(whole, shifts) & (2**bits - 1), shape)


def _quantized(value: Array, scale: Array, zero_point: Array, dtype: DType) -> Array:
    rounded = lax.round(value / scale, lax.RoundingMethod.TO_NEAREST_EVEN)
    number = lax.select(rounded != rounded, lax.full_like(rounded, 0), rounded)
    far = np.array(FAR_OUTSIDE, value.dtype)
    bounded = lax.clamp(-far, number, far)
    whole = lax.convert_element_type(bounded, np.int64)
    total = whole + lax.convert_element_type(zero_point, np.int64)
    low, high = (np.array(limit, np.int64) for limit in dtype.limits)
    return lax.convert_element_type(lax.clamp(low, total, high), held(dtype))


def _dequantized(
    of_q: TensorType, q: Array, scale: Array, zero_point: Array, compute: DType
) -> Array:
    # Differences of small integers fit 32 bits unless the zero point is far outside of their range;
    # 64-bit ones are always exact.
    difference = lax.convert_element_type(q, np.int64) - lax.convert_element_type(
        zero_point, np.int64
    )
    return lax.convert_element_type(difference, compute.numpy) * scale


def _spread(op: Op, parameter: Array, x: Array) -> Array:
    """Return a parameter in the shape of `x`: one per tensor, channel or group."""
    axis: int | None = getattr(op, "axis", None)
    group: int | None = getattr(op, "group_size", None)
    if axis is None or parameter.ndim == 0:
        return lowering.broadcast_to(parameter, x.shape)
    if group is None:
        return lowering.broadcast_in(parameter, x.shape, (axis,))
    split = (*x.shape[:axis], x.shape[axis] // group, group, *x.shape[axis + 1 :])
    axes = [number for number in range(len(split)) if number != axis + 1]
    return lax.reshape(lowering.broadcast_in(parameter, split, axes), x.shape)


# Lowerings of the ops that make random numbers from a seed, bit for bit.


random = ops.random

LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)
MULTIPLIERS = tuple(np.uint64(number) for number in numbers.PHILOX_MULTIPLIERS)


@TABLE.register(random.RngUniform, dtypes=random.RngUniform.allowed)
def rng_uniform(op: ops.random.RngUniform, ctx: LoweringContext, seed: Array) -> Array:
    """Return the random words for integers, their leading bits as a fraction for floats."""
    width, words = _words(op, seed)
    if not op.dtype.is_float:
        return lax.reshape(lax.convert_element_type(words, op.dtype.numpy), op.shape)
    precision = numbers.UNIFORM_BITS[op.dtype.name]
    leading = lax.convert_element_type(words >> np.uint64(width - precision), np.float64)
    fraction = leading * np.float64(2.0**-precision)
    return lax.reshape(convert(fraction, types.f64, op.dtype), op.shape)


# Refused for f64: XLA's results are off by one or two units in the last place there, and PTIR
# specifies the bits. Narrower types are rounded from f64, which hides it.
@TABLE.register(
    random.RngNormal, dtypes=[d for d in random.RngNormal.allowed if d is not types.f64]
)
def rng_normal(op: ops.random.RngNormal, ctx: LoweringContext, seed: Array) -> Array:
    """Return the inverse normal distribution function of the fractions of the random words."""
    width, words = _words(op, seed)
    precision = min(width, 52)
    leading = lax.convert_element_type(words >> np.uint64(width - precision), np.float64)
    u = (leading + 0.5) * np.float64(2.0**-precision)
    return lax.reshape(convert(inverse_normal(u), types.f64, op.dtype), op.shape)


def _words(op: ops.random.Random, seed: Array) -> tuple[int, Array]:
    """Return the width of a random word, 32 or 64, and one word for each element."""
    count = math.prod(op.shape)
    width = max(op.dtype.bits, 32)
    blocks = lax.iota(np.uint64, -(-count * width // 128))
    key, counter = (seed[half].astype(np.uint64) for half in (0, 1))
    low = blocks + counter
    carry = lax.convert_element_type(low < blocks, np.uint64)
    words = _philox([low & LOW, low >> HALF, carry, lax.full_like(low, 0)], key)
    if width == 64:
        words = words[:, 0::2] | (words[:, 1::2] << HALF)
    return width, lax.slice_in_dim(lax.reshape(words, (words.size,)), 0, count)


def _philox(counter: Sequence[Array], key: Array) -> Array:
    """Return Philox 4x32-10: four words [N, 4] for each of N counters, four columns [N].

    All are 32-bit words in ui64, so that products are exact.
    """
    c0, c1, c2, c3 = counter
    for number in range(numbers.PHILOX_ROUNDS):
        k0, k1 = (
            (word + np.uint64(number * step % 2**64)) & LOW
            for word, step in zip((key & LOW, key >> HALF), numbers.PHILOX_KEY_STEPS, strict=True)
        )
        p, q = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (q >> HALF) ^ c1 ^ k0, q & LOW, (p >> HALF) ^ c3 ^ k1, p & LOW
    return jnp.stack([c0, c1, c2, c3], axis=-1)


def inverse_normal(u: Array) -> Array:
    """Return PPND16 of f64 in (0, 1), each operation rounded, in the order that PTIR states."""
    q = u - 0.5
    r = 0.180625 - unfused(q * q)
    central = unfused(q * _polynomial(r, numbers.CENTRAL[0])) / _polynomial(r, numbers.CENTRAL[1])
    t = lax.sqrt(-_log(lax.min(u, 1 - u)))
    near, beyond = t - 1.6, t - 5
    middle = _polynomial(near, numbers.MIDDLE[0]) / _polynomial(near, numbers.MIDDLE[1])
    far = _polynomial(beyond, numbers.FAR[0]) / _polynomial(beyond, numbers.FAR[1])
    tail = lax.select(t <= 5, middle, far)
    tail = lax.select(q < 0, -tail, tail)
    return lax.select(lax.abs(q) <= 0.425, central, tail)


def _log(x: Array) -> Array:
    """Return the logarithm of positive normal f64 by its series, bit for bit as in PTIR."""
    bits = lax.bitcast_convert_type(x, np.int64)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    fraction = lax.bitcast_convert_type(
        (bits & (2**52 - 1)) | np.int64(1022 << 52), np.float64
    )  # in [0.5, 1)
    is_small = fraction < numbers.SQRT_HALF
    m = lax.select(is_small, 2 * fraction, fraction)
    exponent = lax.select(is_small, exponent - 1, exponent)
    s = (m - 1) / (m + 1)
    series = _polynomial(unfused(s * s), numbers.LOG_SERIES)
    whole = unfused(lax.convert_element_type(exponent, np.float64) * numbers.LN_2)
    return whole + unfused((2 * s) * series)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    first, *others = coefficients
    total = lax.full_like(x, first)
    for coefficient in others:
        total = unfused(total * x) + coefficient
    return total
