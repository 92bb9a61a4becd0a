"""Conversion between storage types of tensors and the types that NumPy computes in.

Floats of 8 and 16 bits are computed in f32, which holds each of them exactly, and the result is
rounded once. Integers of 4 bits are computed in 8 bits, and the result wraps. Every other type is
computed in itself.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType


def computing_type(dtype: DType) -> np.dtype[np.generic]:
    """Return the NumPy type in which values of `dtype` are computed."""
    if dtype.is_float and dtype.bits <= 16:
        return dtypes.f32.numpy
    if dtype.is_integer and dtype.bits == 4:
        return (dtypes.si8 if dtype.kind == "signed" else dtypes.ui8).numpy
    return dtype.numpy


_COMPUTED_AS_THEY_ARE = frozenset(
    dtype.numpy for dtype in dtypes.ALL if computing_type(dtype) == dtype.numpy
)


def widen(array: np.ndarray) -> np.ndarray:
    """Convert `array` to its computing type, exactly."""
    if array.dtype in _COMPUTED_AS_THEY_ARE:
        return array
    dtype = dtypes.from_numpy(array.dtype)
    if dtype.bits == 4:
        return wrap(array.view(computing_type(dtype)), dtype)
    return array.astype(computing_type(dtype), copy=False)


def narrow(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert `array`, in the computing type of `dtype`, to it: floats round, integers wrap."""
    if dtype.bits == 4:
        array = wrap(array, dtype)
    return np.asarray(array).astype(dtype.numpy, copy=False)


def wrap(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Wrap integers to the range of `dtype`, in its computing type."""
    if dtype.bits == 4:
        low = array & 15
        # Flipping the sign bit and taking it away again extends it upwards.
        signed = dtype.kind == "signed"
        return ((low ^ 8) - 8 if signed else low).astype(computing_type(dtype), copy=False)
    return array.astype(dtype.numpy, copy=False)


# Conversion between element types, for `cast` and the `out_dtype` of other ops.


def convert(array: np.ndarray, target: DType) -> np.ndarray:
    """Convert `array` to `target`, by the rules of `gptrs.ir.ops.elementwise.Cast`."""
    source = dtypes.from_numpy(array.dtype)
    if source is target:
        return array
    x = widen(array)
    if target.is_bool:
        return np.asarray(x != 0)
    if target.is_complex:
        return _to_complex(x, source, target)
    if source.is_bool:
        x, source = x.astype(np.uint8), dtypes.ui8
    if target.is_float:
        return _float_to_float(x, target) if source.is_float else _integer_to_float(x, target)
    if source.is_float:
        return _float_to_integer(x, target)
    return _integer_to_integer(x, source, target)


def _to_complex(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    if source.is_complex:
        return x.astype(target.numpy)
    part = dtypes.f32 if target is dtypes.cf32 else dtypes.f64
    return convert(x, part).astype(target.numpy)


def _float_to_float(x: np.ndarray, target: DType) -> np.ndarray:
    if x.dtype == np.float64 and target.bits <= 16:
        x = _to_f32_keeping_inexactness(x)
    return x.astype(target.numpy)


def _integer_to_float(x: np.ndarray, target: DType) -> np.ndarray:
    if target.bits > 16:
        return x.astype(target.numpy)
    if x.dtype.itemsize == 8:
        x = _to_53_bits_keeping_inexactness(x)
    return _float_to_float(x.astype(np.float64), target)


def _to_f32_keeping_inexactness(x: np.ndarray) -> np.ndarray:
    """Round f64 to f32; an inexact one becomes the neighbour whose last bit is 1 (round to odd).

    Rounding to nearest twice can go wrong: the f32 may lie halfway between two values of the target
    where `x` does not. An odd f32 never lies halfway, and is on the same side as `x`.
    """
    nearest = x.astype(np.float32)
    inexact = (nearest.astype(np.float64) != x) & ~np.isnan(x)
    is_even = nearest.view(np.uint32) & 1 == 0
    toward_x = np.where(nearest.astype(np.float64) < x, np.inf, -np.inf).astype(np.float32)
    return np.where(inexact & is_even, np.nextafter(nearest, toward_x), nearest)


def _to_53_bits_keeping_inexactness(x: np.ndarray) -> np.ndarray:
    """Round integers beyond +-2^53, which f64 may not hold, to odd multiples of 2^11."""
    low_bits = x.dtype.type(2**11 - 1)
    is_large = (x >= 2**53) | (x <= -(2**53)) if x.dtype == np.int64 else x >= 2**53
    # A sticky bit: 64 - 11 = 53 bits are left, the significand of f64, with the lowest one set if
    # anything was cut off.
    rounded = (x & ~low_bits) | ((x & low_bits) != 0).astype(x.dtype) << 11
    return np.where(is_large, rounded, x)


def _float_to_integer(x: np.ndarray, target: DType) -> np.ndarray:
    low, high = target.limits
    whole = np.trunc(x.astype(np.float64))
    # `high` itself may not be a f64, but the power of two above it is.
    too_high, too_low = whole >= float(high + 1), whole < low
    fits = ~(too_high | too_low | np.isnan(whole))
    integer = computing_type(target)
    truncated = np.where(fits, whole, 0.0).astype(integer)
    saturated = np.where(too_high, np.asarray(high, integer), np.asarray(low, integer))
    return narrow(np.where(too_high | too_low, saturated, truncated), target)


def _integer_to_integer(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    (source_low, source_high), (low, high) = source.limits, target.limits
    bounds = max(low, source_low), min(high, source_high)
    # Bounds representable in the source type, or NumPy would promote si64 and ui64 to f64.
    inside = np.clip(x, *(np.asarray(bound, x.dtype) for bound in bounds))
    return narrow(inside.astype(computing_type(target)), target)


# Conversion to and from the accumulator type of sums and products.


def to_accumulator(array: np.ndarray, accum: DType) -> np.ndarray:
    """Convert `array` to the computing type of `accum`; integers wrap, as sums in `accum` do."""
    if accum.is_integer:
        return wrap(widen(array), accum)
    return widen(convert(array, accum))


def from_accumulator(array: np.ndarray, accum: DType, out: DType) -> np.ndarray:
    """Round a total in the computing type of `accum` to `accum`, and cast it to `out`."""
    return convert(narrow(array, accum), out)
