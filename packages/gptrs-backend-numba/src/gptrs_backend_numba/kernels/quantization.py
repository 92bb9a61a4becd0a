"""The source text of the quantization ops for elementwise kernels."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import cast, register

Register = tuple[str, DType]
"""A value: its name in the kernel or source that computes it, and its element type."""

_FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits, whatever zero point is added to it."""


def quantized(
    value: Register, scale: Register, zero_point: str, compute: DType, dtype: DType
) -> str:
    """Return `clamp(rint(value / scale) + zero_point)` as `dtype`, divided in `compute`."""
    bound = f"{register(compute)}({_FAR_OUTSIDE})"
    quotient = f"rint(divide({_as(value, compute)}, {_as(scale, compute)}))"
    inside = f"float_minimum(float_maximum({quotient}, -{bound}), {bound})"
    total = f"wrap_add(convert({inside}, np.int64), convert({zero_point}, np.int64))"
    return cast(total, dtypes.si64, dtype)


def dequantized(q: str, scale: Register, zero_point: str, compute: DType) -> str:
    """Return the source of `(q - zero_point) * scale` in `compute`."""
    difference = f"wrap_sub(convert({q}, np.int64), convert({zero_point}, np.int64))"
    return f"convert({difference}, {register(compute)}) * {_as(scale, compute)}"


def scaled(q: str, scale: Register, compute: DType) -> str:
    """Return the source of `q * scale` in `compute`."""
    return f"convert(convert({q}, np.int64), {register(compute)}) * {_as(scale, compute)}"


def unpacked(low: str, high: str | None, shift: int, bits: int) -> str:
    """Return the source of the `bits` bits from bit `shift` of a byte, and of the next one, on."""
    stream = f"convert({low}, np.int64)"
    if high is not None:
        above = f"shift_left(convert({high}, np.int64), np.int64(8))"
        stream = f"bit_or({stream}, {above})"
    moved = f"shift_right_logical({stream}, np.int64({shift}))"
    return cast(f"bit_and({moved}, np.int64({(1 << bits) - 1}))", dtypes.si64, dtypes.ui8)


def _as(value: Register, dtype: DType) -> str:
    return cast(*value, dtype)
