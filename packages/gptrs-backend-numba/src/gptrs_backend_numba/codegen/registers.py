"""Element types in kernels: the types they are loaded, computed on, rounded and stored as.

`i1` is a byte in memory and a truth value in a register. Floats of 8 and 16 bits are unsigned
integers in memory and float32 in a register, rounded to the narrow type after every operation.
Integers of 4 bits take a byte in memory and in a register, and wrap after every operation.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

INTEGERS: tuple[DType, ...] = dtypes.INTEGERS
FLOATS: tuple[DType, ...] = dtypes.FLOATS
NUMBERS: tuple[DType, ...] = (*INTEGERS, *FLOATS, dtypes.cf32, dtypes.cf64)
"""The element types that kernels can add and multiply."""


def is_narrow(dtype: DType) -> bool:
    """Return whether the type is computed on as float32 and rounded."""
    return dtype.is_float and dtype.bits <= 16


def register(dtype: DType) -> str:
    """Return the NumPy type, as source, of a value of this type in a register."""
    if is_narrow(dtype):
        return "np.float32"
    if dtype.bits == 4:
        return "np.int8" if dtype.kind == "signed" else "np.uint8"
    return f"np.{dtype.numpy.name}" if not dtype.is_bool else "np.bool_"


def memory(dtype: DType) -> str:
    """Return the NumPy type, as source, of an element of this type in memory."""
    if is_narrow(dtype):
        return f"np.uint{dtype.bits}"
    return "np.uint8" if dtype.is_bool else register(dtype)


def typed_pointer(address: str, dtype: DType) -> str:
    """Return the source of a pointer to elements of this type."""
    return f"pointer({address}, {memory(dtype)})"


def load(dtype: DType, element: str) -> str:
    """Return the source of the register value of `element`, an indexed pointer."""
    if is_narrow(dtype):
        return f"{dtype}_to_f32({element})"
    if dtype.bits == 4:
        return rounded(dtype, element)
    return f"convert({element}, np.bool_)" if dtype.is_bool else element


def store(dtype: DType, value: str) -> str:
    """Return the source of the value to assign to an element for a register value."""
    if is_narrow(dtype):
        return f"f32_to_{dtype}({value})"
    return f"convert({value}, np.uint8)" if dtype.is_bool else value


def rounded(dtype: DType, value: str) -> str:
    """Return the source of a computed value rounded to the precision of its type."""
    if dtype.bits == 4:
        return f"wrapped_{dtype}({value})"
    return f"{dtype}_to_f32(f32_to_{dtype}({value}))" if is_narrow(dtype) else value


def cast(value: str, source: DType, target: DType) -> str:
    """Return the source of a register value converted as by `cast`, never from complex to real."""
    if source is target:
        return value
    if target.is_complex:
        return _to_complex(value, source, target)
    if source.is_complex:
        return f"({value} != {register(source)}(0))"
    if is_narrow(target):
        return rounded(target, _to_f32(value, source))
    converted = f"convert({value}, {register(target)})"
    return f"clamped_{target}({converted})" if target.bits == 4 else converted


def cast_element(value: str, source: DType, target: DType) -> str:
    """Return the source of the value to assign to an element for one converted as by `cast`."""
    if is_narrow(target) and source is not target:
        return store(target, _to_f32(value, source))  # which rounds it
    return store(target, cast(value, source, target))


def _to_complex(value: str, source: DType, target: DType) -> str:
    if not source.is_complex:
        value = cast(value, source, dtypes.f32 if target is dtypes.cf32 else dtypes.f64)
    return f"{register(target)}({value})"


def _to_f32(value: str, source: DType) -> str:
    """Return the source of f32 on the way to a narrow type: what it rounds is no tie there."""
    if source.is_integer and source.bits == 64:
        value = f"to_53_bits_odd({value})"
    if source.bits >= 32 and source is not dtypes.f32:
        value = f"f64_to_f32_odd(convert({value}, np.float64))"
    return f"convert({value}, np.float32)"


def constant(value: complex, dtype: DType) -> np.generic:
    """Return `value` as a NumPy scalar of the register type, to be a global name of a kernel."""
    if is_narrow(dtype):
        return np.float32(value.real)
    if dtype.bits == 4:
        return (np.int8 if dtype.kind == "signed" else np.uint8)(int(value.real))
    return dtype.numpy.type(value)
