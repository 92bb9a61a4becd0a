"""Expected results by exact arithmetic that shares no code with NumPy kernels or ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

PRECISION = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
LEAST_EXPONENT = {"f8e4m3": -6, "f8e5m2": -14, "bf16": -126, "f16": -14, "f32": -126, "f64": -1022}
GREATEST = {
    "f8e4m3": 448.0,
    "f8e5m2": 57344.0,
    "bf16": (2 - 2.0**-7) * 2.0**127,
    "f16": 65504.0,
    "f32": (2 - 2.0**-23) * 2.0**127,
    "f64": (2 - 2.0**-52) * 2.0**1023,
}


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    if dtype.kind == "signed":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def wrapped(value: int, dtype: DType) -> int:
    """Return `value` modulo 2^bits, in the range of the type."""
    low, _ = integer_range(dtype)
    return (value - low) % (1 << dtype.bits) + low


def overflow(dtype: DType) -> float:
    """Return what a value too large for the type becomes."""
    return math.nan if dtype is dtypes.f8e4m3 else math.inf


def decode(array: np.ndarray) -> np.ndarray:
    """Decode an array of `i1`, integers up to 53 bits or floats as f64, from its bits."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype.bits == 4:
        low = array.view(np.uint8) & 15
        return np.where((low > 7) & (dtype.kind == "signed"), low - 16.0, low)
    if not dtype.is_float or dtype.bits >= 32:
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return array.astype(np.float64)
    return _decode_float(array.view(f"u{dtype.itemsize}").astype(np.int64), dtype)


def _decode_float(bits: np.ndarray, dtype: DType) -> np.ndarray:
    mantissa_bits = PRECISION[dtype.name] - 1
    exponent_bits = dtype.bits - 1 - mantissa_bits
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    is_normal = exponent > 0
    significand = mantissa + (is_normal.astype(np.int64) << mantissa_bits)
    scale = np.where(is_normal, exponent - 1, 0) + LEAST_EXPONENT[dtype.name] - mantissa_bits
    value = np.ldexp(significand.astype(np.float64), scale)
    top = exponent == (1 << exponent_bits) - 1
    if dtype is dtypes.f8e4m3:
        value = np.where(top & (mantissa == 7), np.nan, value)
    else:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.copysign(value, np.where(bits >> (dtype.bits - 1) == 1, -1.0, 1.0))


def every_value(dtype: DType) -> np.ndarray:
    """Return all values of a type of at most 16 bits."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.bits == 4:
        low, high = integer_range(dtype)
        return np.arange(low, high + 1).astype(dtype.numpy)
    return np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}").view(dtype.numpy)


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 values rounded to nearest even in a float type, again as f64.

    Scaling by a power of two makes the unit of the last place 1, so that `rint` rounds exactly.
    """
    if dtype is dtypes.f64:
        return x
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, LEAST_EXPONENT[dtype.name])
        unit = exponent - (PRECISION[dtype.name] - 1)
        value = np.ldexp(np.rint(np.ldexp(x, -unit)), unit)
        too_large = np.abs(value) > GREATEST[dtype.name]
        return np.where(too_large, np.copysign(overflow(dtype), x), value)


def rounded_exactly(value: Fraction, dtype: DType) -> float:
    """Return a fraction rounded to nearest even in a float type, by integer arithmetic alone."""
    magnitude = abs(value)
    if magnitude == 0:
        return 0.0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    exponent = max(exponent, LEAST_EXPONENT[dtype.name])
    unit = Fraction(2) ** (exponent - (PRECISION[dtype.name] - 1))
    nearest = round(magnitude / unit) * unit  # halves go to the even integer
    if nearest > Fraction(GREATEST[dtype.name]):
        return -overflow(dtype) if value < 0 else overflow(dtype)
    return -float(nearest) if value < 0 else float(nearest)


def assert_same_floats(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal values and signs of zeros; any NaN equals any other."""
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    """`found`, of type `dtype`, against f64 values: within 1e-5 at f32, one rounding below that.

    `expected` is rounded to `dtype` first, so that what overflows there must overflow in `found`.
    """
    rtol, atol = {"f64": (1e-12, 1e-14), "f32": (1e-5, 1e-5)}.get(dtype.name, (0.0, 0.0))
    if dtype.bits <= 16:
        # An error of f32 may carry a result over the middle between two neighbours.
        rtol = 2.0 ** (1 - PRECISION[dtype.name])
        atol = 2.0 ** (LEAST_EXPONENT[dtype.name] + 1 - PRECISION[dtype.name])
    np.testing.assert_allclose(decode(found), rounded(expected, dtype), rtol=rtol, atol=atol)
