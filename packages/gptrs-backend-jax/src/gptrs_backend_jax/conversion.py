"""Conversion between element types, for `cast` and the `out_dtype` of other ops."""

from __future__ import annotations

import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.client import Device, placed
from gptrs_backend_jax.element_types import (
    held,
    is_narrow_float,
    order_keys,
    widen,
    wrap,
)


def convert(x: Array, source: DType, target: DType) -> Array:
    """Convert held elements of `source` to `target`, by the rules of `cast`."""
    if source is target:
        return x
    if target.is_bool:
        return _to_bool(x, source)
    if target.is_complex:
        return _to_complex(x, source, target)
    if source.is_bool:
        return lax.convert_element_type(x, held(target))
    if target.is_float:
        return _to_float(x, source, target)
    if source.is_float:
        return _float_to_integer(widen(source, x), target)
    return _integer_to_integer(x, source, target)


def _to_bool(x: Array, source: DType) -> Array:
    if source.is_complex:
        part = dtypes.f32 if source is dtypes.cf32 else dtypes.f64
        return _to_bool(lax.real(x), part) | _to_bool(lax.imag(x), part)
    return order_keys(source, x)[0] != 0


def _to_complex(x: Array, source: DType, target: DType) -> Array:
    if source.is_complex:
        return lax.convert_element_type(x, target.numpy)
    part = dtypes.f32 if target is dtypes.cf32 else dtypes.f64
    real = convert(x, source, part)
    return lax.complex(real, lax.full_like(real, 0))


def _to_float(x: Array, source: DType, target: DType) -> Array:
    if source.is_float:
        if source is dtypes.f64 and target is dtypes.f16:
            x = _rounded_to_odd_f32(x)  # XLA converts through f32 and rounds twice
        wide = widen(source, x)
        if target is dtypes.f64 and source in (dtypes.f32, dtypes.bf16):
            return _f32_to_f64(wide)
        return lax.convert_element_type(wide, target.numpy)
    if not is_narrow_float(target) or source.bits < 32:
        return lax.convert_element_type(x, target.numpy)
    if source.bits == 64:
        x = _rounded_to_53_bits(x)
    return _to_float(lax.convert_element_type(x, np.float64), dtypes.f64, target)


def _f32_to_f64(x: Array) -> Array:
    """Convert each f32, those too that XLA takes for 0 on CPUs: by the bits of subnormal ones."""
    bits = lax.bitcast_convert_type(x, np.int32)
    mantissa = lax.convert_element_type(bits & (2**23 - 1), np.float64)
    magnitude = mantissa * np.float64(2.0**-149)
    subnormal = lax.select(bits < 0, -magnitude, magnitude)
    is_subnormal = (bits & (255 << 23)) == 0
    return lax.select(is_subnormal, subnormal, lax.convert_element_type(x, np.float64))


def _rounded_to_odd_f32(x: Array) -> Array:
    """Round f64 to f32; an inexact one becomes the neighbour whose last bit is 1 (round to odd).

    Rounding to nearest twice can go wrong: the f32 may lie halfway between two values of the target
    where `x` does not. An odd f32 never lies halfway, and is on the same side as `x`.
    """
    nearest = lax.convert_element_type(x, np.float32)
    back = lax.convert_element_type(nearest, np.float64)
    bits = lax.bitcast_convert_type(nearest, np.int32)
    toward_zero = lax.select(lax.abs(back) > lax.abs(x), bits - 1, bits)
    odd = lax.select(back == x, bits, toward_zero | 1)
    odd = lax.select(lax.is_finite(x), odd, bits)
    return lax.bitcast_convert_type(odd, np.float32)


def _rounded_to_53_bits(x: Array) -> Array:
    """Round 64-bit integers beyond +-2^53, which f64 may not hold, to odd multiples of 2^11."""
    inexact = (x & (2**11 - 1)) != 0
    odd = (x & ~np.array(2**11 - 1, x.dtype)) | (lax.convert_element_type(inexact, x.dtype) << 11)
    is_large = x >= 2**53
    if x.dtype == np.int64:
        is_large = is_large | (x <= -(2**53))
    return lax.select(is_large, odd, x)


def _float_to_integer(x: Array, target: DType) -> Array:
    low, high = target.limits
    # `high` itself may not be representable, but the power of two above it is.
    too_high, too_low = x >= float(high + 1), x <= float(low) - (1.0 if target.bits < 32 else 0.0)
    inside = ~(too_high | too_low | (x != x))
    whole = lax.convert_element_type(
        lax.select(inside, x, lax.full_like(x, 0)), held(target)
    )  # truncates
    whole = lax.select(too_high, lax.full_like(whole, high), whole)
    return lax.select(too_low, lax.full_like(whole, low), whole)


def _integer_to_integer(x: Array, source: DType, target: DType) -> Array:
    (source_low, source_high), (low, high) = source.limits, target.limits
    bounds = max(low, source_low), min(high, source_high)
    least, most = (np.array(bound, x.dtype) for bound in bounds)
    return wrap(target, lax.convert_element_type(lax.clamp(least, x, most), held(target)))


# Small inputs that remain on the host until a program runs, which transfers them.


MOST_BYTES = 1 << 16
"""The largest array passed with the call: JAX takes 35 us to put an array on a device, whatever its
size, and less than 1 us more to pass it to a program.
"""

_OF_TWO_LAYOUTS = frozenset(dtype.numpy for dtype in dtypes.ALL if dtype.bits == 4)


class HostValue:
    """A small buffer: a read-only array, with a copy on the device on demand."""

    __slots__ = ("_on_device", "array", "dtype", "shape")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array if array.flags.c_contiguous else array.copy()
        self.dtype = array.dtype
        self.shape = array.shape
        self._on_device: Array | None = None

    def on_device(self, device: Device) -> Array:
        """Return it as a JAX array, made once, since weights are passed repeatedly."""
        if self._on_device is None:
            self._on_device = placed(self.array, device)
        return self._on_device

    def read_only(self) -> np.ndarray:
        """Return the elements."""
        view = self.array.view()
        view.flags.writeable = False
        return view


def buffer_of(array: np.ndarray, device: Device) -> HostValue | Array:
    """Return a buffer of `array`, in the byte order of this machine: on the device if it is large.

    Integers of 4 bits are put there, too: JAX has two layouts for them.
    """
    dtype = array.dtype
    native = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    if array.nbytes <= MOST_BYTES and array.dtype not in _OF_TWO_LAYOUTS:
        return HostValue(native)
    return placed(native, device)
