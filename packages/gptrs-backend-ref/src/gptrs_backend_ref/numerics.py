"""Conversion between storage types of tensors and the types that NumPy computes in.

Floats of 8 and 16 bits are computed in f32, which holds each of them exactly, and the result is
rounded once. Integers of 4 bits are computed in 8 bits, and the result wraps. Every other type is
computed in as it is.
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


def integer_limits(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    if dtype.kind == "signed":
        return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    return 0, 2**dtype.bits - 1
