"""The types in which JAX stores and computes elements of PTIR, and their conversions.

Integers of 4 bits are held as 8-bit ones in their range. Floats of 8 and 16 bits are stored in
their type and computed in f32, which represents each of them exactly; a result is rounded once.
"""

from __future__ import annotations

import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, dtypes

NUMBERS = tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool)
REALS = (*dtypes.INTEGERS, *dtypes.FLOATS)
ORDERED = tuple(dtype for dtype in dtypes.ALL if not dtype.is_complex)
COMPLEX = tuple(dtype for dtype in dtypes.ALL if dtype.is_complex)

F8E4M3_GREATEST = 448.0
"""The greatest value of f8e4m3, the only float type without infinities."""


def is_narrow_float(dtype: DType) -> bool:
    """Return whether `dtype` is a float of 8 or 16 bits, computed in f32."""
    return dtype.is_float and dtype.bits <= 16


def held(dtype: DType) -> np.dtype[np.generic]:
    """Return the type of arrays that hold elements of `dtype` inside a compiled function."""
    if dtype.bits == 4:
        return np.dtype(np.int8 if dtype.kind == "signed" else np.uint8)
    return dtype.numpy


def computing(dtype: DType) -> np.dtype[np.generic]:
    """Return the type in which elements of `dtype` are computed."""
    return dtypes.f32.numpy if is_narrow_float(dtype) else held(dtype)


def widen(dtype: DType, x: Array) -> Array:
    """Convert `x`, held elements of `dtype`, to the type that it is computed in, exactly."""
    return lax.convert_element_type(x, computing(dtype))


def narrow(dtype: DType, x: Array) -> Array:
    """Convert `x`, in the computing type of `dtype`, to the held type: round, or wrap to 4 bits."""
    return lax.convert_element_type(wrap(dtype, x), held(dtype))


def wrap(dtype: DType, x: Array) -> Array:
    """Wrap integers of 4 bits to their range; other types are returned unchanged."""
    if dtype.bits != 4:
        return x
    low = x & 15
    # Flipping the sign bit and taking it away again extends it upwards.
    return (low ^ 8) - 8 if dtype.kind == "signed" else low


def constant(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return a literal of `dtype` as an array of the held type."""
    return array.astype(held(dtype)) if dtype.bits == 4 else array


def order_keys(dtype: DType, x: Array) -> tuple[Array, Array | None]:
    """Return integers that order like `x`, with NaN greatest, and where `x` is NaN.

    On CPUs, XLA treats subnormal numbers as zero when it compares floats; their bits distinguish
    them. -0.0 and 0.0 have the same key. Integers and `i1` are their own keys, without NaN.
    """
    if not dtype.is_float:
        return x, None
    if dtype.bits == 8:
        x, dtype = lax.convert_element_type(x, np.float32), dtypes.f32
    whole = np.dtype(f"int{dtype.bits}")
    most = np.iinfo(whole).max
    bits = lax.bitcast_convert_type(x, whole)
    size = bits & most
    infinity = np.array(np.inf, x.dtype).view(whole)
    is_nan = size > infinity
    signed = lax.select(bits < 0, -size, size)
    return lax.select(is_nan, lax.full_like(signed, most), signed), is_nan
