"""Kernels of the ops that map floats to integers of few bits and back."""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir import random_constants as constants
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import quantization as quantization_ops
from gptrs.ir.ops import random as random_ops
from gptrs_backend_ref.numerics import convert, widen
from gptrs_backend_ref.table import TABLE

FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits plus any zero point."""


@TABLE.register(quantization_ops.Quantize, dtypes=dtypes.FLOATS)
def quantize(
    op: quantization_ops.Quantize, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """Divide by the scale, round half to even, add the zero point, saturate."""
    compute = _computing(x, scale)
    scales, zero_points = (_spread(op, array, x) for array in (scale, zero_point))
    return _quantized(convert(x, compute), convert(scales, compute), zero_points, op.dtype)


@TABLE.register(quantization_ops.Dequantize, dtypes=quantization_ops.QUANTIZED)
def dequantize(
    op: quantization_ops.Dequantize, q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """Subtract the zero point, multiply by the scale, round to the result type."""
    compute = quantization_ops.computing_dtype(dtypes.from_numpy(scale.dtype), op.dtype)
    scales, zero_points = (_spread(op, array, q) for array in (scale, zero_point))
    return convert(_dequantized(q, convert(scales, compute), zero_points, compute), op.dtype)


@TABLE.register(quantization_ops.DequantizeAffine, dtypes=quantization_ops.QUANTIZED)
def dequantize_affine(
    op: quantization_ops.DequantizeAffine, q: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Multiply by the scale, add the bias, round to the result type."""
    floats = (dtypes.from_numpy(array.dtype) for array in (scale, bias))
    compute = quantization_ops.computing_dtype(*floats, op.dtype)
    scales, biases = (convert(_spread(op, array, q), compute) for array in (scale, bias))
    return convert(_dequantized(q, scales, np.int64(0), compute) + biases, op.dtype)


@TABLE.register(quantization_ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpack_bits(op: quantization_ops.UnpackBits, packed: np.ndarray) -> np.ndarray:
    """Expand the bits, and combine each `op.bits` of them."""
    stream = np.unpackbits(np.moveaxis(packed, op.axis, -1), axis=-1, bitorder="little")
    integers = stream.reshape(*stream.shape[:-1], stream.shape[-1] // op.bits, op.bits)
    values = np.packbits(integers, axis=-1, bitorder="little")[..., 0]
    return np.moveaxis(values, -1, op.axis)


@TABLE.register(quantization_ops.Requantize, dtypes=quantization_ops.QUANTIZED)
def requantize(
    op: quantization_ops.Requantize,
    q: np.ndarray,
    scale_in: np.ndarray,
    zero_point_in: np.ndarray,
    scale_out: np.ndarray,
    zero_point_out: np.ndarray,
) -> np.ndarray:
    """Dequantize with the old scale and zero point, quantize with the new ones."""
    compute = _computing(scale_in, scale_out)
    from_scale, to_scale = (
        convert(_spread(op, scale, q), compute) for scale in (scale_in, scale_out)
    )
    value = _dequantized(q, from_scale, _spread(op, zero_point_in, q), compute)
    return _quantized(value, to_scale, _spread(op, zero_point_out, q), op.dtype)


def _computing(*floats: np.ndarray) -> DType:
    return quantization_ops.computing_dtype(*(dtypes.from_numpy(array.dtype) for array in floats))


def _quantized(
    value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype: DType
) -> np.ndarray:
    rounded = np.rint(value / scale)
    number = np.where(np.isnan(rounded), 0, rounded)
    # Clipped before the cast to si64, which is undefined in C for infinities.
    whole = np.clip(number, -FAR_OUTSIDE, FAR_OUTSIDE).astype(np.int64)
    saturated = np.clip(whole + zero_point, *dtype.limits)
    return convert(saturated, dtype)


def _dequantized(
    q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | np.int64, compute: DType
) -> np.ndarray:
    # In si64, since 32-bit codes and zero points may differ by 2^32.
    difference = widen(q).astype(np.int64) - zero_point
    return difference.astype(compute.numpy) * scale


def _spread(op: quantization_ops.Quantization, parameter: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a parameter that broadcasts to `x`: one per tensor, channel or group."""
    if op.axis is None or parameter.ndim == 0:
        return parameter
    if op.group_size is not None:
        return np.repeat(parameter, op.group_size, axis=op.axis)
    aligned = [1] * x.ndim
    aligned[op.axis] = parameter.size
    return parameter.reshape(aligned)


# Kernels of the ops that make random numbers from a seed.


HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)


@TABLE.register(random_ops.RngUniform, dtypes=random_ops.RngUniform.allowed)
def rng_uniform(op: random_ops.RngUniform, seed: np.ndarray) -> np.ndarray:
    """Return the random words for integers, their leading bits as a fraction for floats."""
    width, words = _words(op, seed)
    if not op.dtype.is_float:
        return words.astype(op.dtype.numpy).reshape(op.shape)
    precision = constants.UNIFORM_BITS[op.dtype.name]
    fraction = (words >> np.uint64(width - precision)) * 2.0**-precision
    return convert(fraction, op.dtype).reshape(op.shape)


@TABLE.register(random_ops.RngNormal, dtypes=random_ops.RngNormal.allowed)
def rng_normal(op: random_ops.RngNormal, seed: np.ndarray) -> np.ndarray:
    """Return the inverse normal distribution function of the fractions of the random words."""
    width, words = _words(op, seed)
    precision = min(width, 52)
    # The half keeps u off 0 and 1, where the normal distribution's inverse is infinite.
    u = ((words >> np.uint64(width - precision)) + 0.5) * 2.0**-precision
    return convert(inverse_normal(u), op.dtype).reshape(op.shape)


def _words(op: random_ops.Random, seed: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the width of a random word, 32 or 64, and one word for each element."""
    count = math.prod(op.shape)
    width = max(op.dtype.bits, 32)
    blocks = np.arange(-(-count * width // 128), dtype=np.uint64)
    low = blocks + seed[1]
    # The counter has 128 bits; `blocks + seed[1]` wraps in the low 64.
    carry = (low < blocks).astype(np.uint64)
    words = philox([low & LOW, low >> HALF, carry, np.zeros_like(low)], seed[0])
    if width == 64:
        words = words[:, 0::2] | words[:, 1::2] << HALF
    return width, words.reshape(-1)[:count]


def philox(counter: list[np.ndarray], key: np.uint64) -> np.ndarray:
    """Return Philox 4x32-10: four words [N, 4] for each of N counters, four columns [N].

    All are 32-bit words in ui64, so that products are exact.
    """
    c0, c1, c2, c3 = counter
    m0, m1 = (np.uint64(multiplier) for multiplier in constants.PHILOX_MULTIPLIERS)
    for number in range(constants.PHILOX_ROUNDS):
        k0, k1 = (
            (word + np.uint64(number * step)) & LOW
            for word, step in zip((key & LOW, key >> HALF), constants.PHILOX_KEY_STEPS, strict=True)
        )
        p, q = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (q >> HALF) ^ c1 ^ k0, q & LOW, (p >> HALF) ^ c3 ^ k1, p & LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


def inverse_normal(u: np.ndarray) -> np.ndarray:
    """Return PPND16 of f64 in (0, 1), each operation in the order that `RngNormal` states."""
    q = u - 0.5
    r = 0.180625 - q * q
    a, b = constants.CENTRAL
    central = (q * _polynomial(r, a)) / _polynomial(r, b)
    t = np.sqrt(-_log(np.minimum(u, 1 - u)))
    (c, d), (e, f) = constants.MIDDLE, constants.FAR
    middle = _polynomial(t - 1.6, c) / _polynomial(t - 1.6, d)
    far = _polynomial(t - 5, e) / _polynomial(t - 5, f)
    # Both tails are computed for all elements, where `far` may be meaningless, and selected
    # afterwards.
    tail = np.where(t <= 5, middle, far)
    return np.where(np.abs(q) <= 0.425, central, np.where(q < 0, -tail, tail))


def _log(x: np.ndarray) -> np.ndarray:
    fraction, exponent = np.frexp(x)
    is_small = fraction < constants.SQRT_HALF
    m = np.where(is_small, 2 * fraction, fraction)
    e = np.where(is_small, exponent - 1, exponent)
    s = (m - 1) / (m + 1)
    return e * constants.LN_2 + (2 * s) * _polynomial(s * s, constants.LOG_SERIES)


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    first, *others = coefficients
    total = np.full_like(x, first)
    for coefficient in others:
        total = total * x + coefficient
    return total
