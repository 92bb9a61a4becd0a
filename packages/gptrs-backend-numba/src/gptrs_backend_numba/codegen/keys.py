"""Integers that compare as elements do: what sorting and looking for extremes work on."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.machine import choose
from gptrs_backend_numba.codegen.registers import element

_GREATEST = np.int64(2**63 - 1)
_LEAST = np.int64(-(2**63))


def key_pointer(address: str, dtype: DType) -> str:
    """Source of a pointer to elements as `key` takes them."""
    return f"pointer({address}, {element(dtype.itemsize)})"


def key(dtype: DType, bits: str, *, nan_is_least: bool = False) -> str:
    """Source of an int64 that orders as the values of a real type or `i1` do, from the bits.

    -0.0 equals 0.0. NaN is greater than all else, or less, and equal to NaN.
    """
    if dtype.is_bool:
        return f"wrapped({bits}, np.int64) & 1"
    if dtype.is_float:
        nan = _LEAST if nan_is_least else _GREATEST
        sign = np.int64(-1) << np.int64(dtype.bits - 1)
        return f"float_key(wrapped({bits}, np.int64), {sign}, {_greatest_bits(dtype)}, {nan})"
    if dtype.bits == 4:  # the upper half of the byte may hold anything
        low = f"wrapped({bits}, np.int64) & 15"
        return f"(({low}) ^ 8) - 8" if dtype.kind == "signed" else low
    if dtype.kind == "signed":
        return f"wrapped(wrapped({bits}, np.int{dtype.bits}), np.int64)"
    # From 0 up is from the least number up when the sign bit is flipped.
    return f"wrapped({bits}, np.int64) ^ SIGN_BIT" if dtype.bits == 64 else f"np.int64({bits})"


def _greatest_bits(dtype: DType) -> int:
    """The bits of the greatest positive value; those above are NaN."""
    greatest = 448.0 if dtype is dtypes.f8e4m3 else np.inf
    return int(np.array(greatest).astype(dtype.numpy).view(f"u{dtype.itemsize}"))


@register_jitable
def float_key(bits, sign, greatest, nan):
    """Sign and magnitude as one number; `sign` has the sign bit and all above it."""
    magnitude = bits & ~np.int64(sign)
    number = choose((bits & np.int64(sign)) != 0, -magnitude, magnitude)
    return choose(magnitude > np.int64(greatest), np.int64(nan), number)


KEY_NAMES: dict[str, object] = {"float_key": float_key, "SIGN_BIT": _LEAST}
"""Additional names of the sources that use keys."""
