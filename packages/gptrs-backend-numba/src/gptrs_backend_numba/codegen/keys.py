"""Integers that compare as elements do, for sorting and for argmax and argmin."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import wrapped
from gptrs_backend_numba.codegen.deferred import named, register_jitable
from gptrs_backend_numba.codegen.elements import Unary
from gptrs_backend_numba.codegen.machine import choose

_GREATEST = np.int64(2**63 - 1)
_LEAST = np.int64(-(2**63))


@cache
def key_of(dtype: DType, *, nan_is_least: bool = False) -> Unary:
    """Return the function from the bits of an element to an int64 that orders as the values do.

    The bits are loaded as `bits_of_width(dtype.itemsize)`; the type is real or `i1`. -0.0 equals
    0.0. NaN is greater than all else, or less, and equal to NaN.
    """
    if dtype.is_float:
        made = _float_key(dtype, _LEAST if nan_is_least else _GREATEST)
    else:
        made = _integer_key(dtype)
    return register_jitable(named(f"key_of_{dtype}{'_nan_least' * nan_is_least}")(made))


def _float_key(dtype: DType, nan: np.int64) -> Unary:
    sign = np.int64(-1) << np.int64(dtype.bits - 1)
    greatest = _greatest_bits(dtype)

    def of_float(bits):
        return float_key(wrapped(bits, np.int64), sign, greatest, nan)

    return of_float


def _integer_key(dtype: DType) -> Unary:
    type_ = dtype.numpy.type
    if dtype.bits <= 4:  # `i1` and 4 bits; the rest of the byte may hold anything
        used, sign = 2**dtype.bits - 1, 8 if dtype.kind == "signed" else 0

        def of_bits(bits):
            return ((wrapped(bits, np.int64) & used) ^ sign) - sign

        return of_bits
    if dtype.kind == "signed":

        def of_signed(bits):
            return wrapped(wrapped(bits, type_), np.int64)

        return of_signed
    # From 0 up is from the least number up when the sign bit is flipped.
    flipped = _LEAST if dtype.bits == 64 else np.int64(0)

    def of_unsigned(bits):
        return wrapped(bits, np.int64) ^ flipped

    return of_unsigned


def _greatest_bits(dtype: DType) -> int:
    """Return the bits of the greatest positive value; those above are NaN."""
    greatest = 448.0 if dtype is dtypes.f8e4m3 else np.inf
    return int(np.array(greatest).astype(dtype.numpy).view(f"u{dtype.itemsize}"))


@register_jitable
def float_key(bits, sign, greatest, nan):
    """Return sign and magnitude as one number; `sign` has the sign bit and all above it."""
    magnitude = bits & ~np.int64(sign)
    number = choose((bits & np.int64(sign)) != 0, -magnitude, magnitude)
    return choose(magnitude > np.int64(greatest), np.int64(nan), number)
