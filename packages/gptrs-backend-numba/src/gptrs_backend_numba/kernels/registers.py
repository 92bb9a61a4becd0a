"""How element types live in kernels: as what they are loaded, computed on, rounded, and stored.

`i1` is a byte in memory and a truth value in a register; f16 and bf16 are 16 bits in memory and a
float32 in a register, rounded to the narrow type after every operation.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, bf16, f16, i1

INTEGERS: tuple[DType, ...] = tuple(d for d in dtypes.INTEGERS if d.bits >= 8)
FLOATS: tuple[DType, ...] = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)
COMPUTED: tuple[DType, ...] = (dtypes.i1, *INTEGERS, *FLOATS)
"""The element types that kernels can compute with."""


def is_narrow(dtype: DType) -> bool:
    """Whether the type is computed on as float32 and rounded."""
    return dtype in (f16, bf16)


def register(dtype: DType) -> str:
    """The NumPy type, as source, of a value of this type in a register."""
    if is_narrow(dtype):
        return "np.float32"
    return "np.bool_" if dtype is i1 else f"np.{dtype.numpy.name}"


def memory(dtype: DType) -> str:
    """The NumPy type, as source, of an element of this type in memory."""
    if is_narrow(dtype):
        return "np.uint16"
    return "np.uint8" if dtype is i1 else f"np.{dtype.numpy.name}"


def typed_pointer(address: str, dtype: DType) -> str:
    """Source of a pointer to elements of this type."""
    return f"pointer({address}, {memory(dtype)})"


def load(dtype: DType, element: str) -> str:
    """Source of the register value of `element`, an indexed pointer."""
    if is_narrow(dtype):
        return f"{dtype}_to_f32({element})"
    return f"convert({element}, np.bool_)" if dtype is i1 else element


def store(dtype: DType, value: str) -> str:
    """Source of what to assign to an element for a register value."""
    if is_narrow(dtype):
        return f"f32_to_{dtype}({value})"
    return f"convert({value}, np.uint8)" if dtype is i1 else value


def rounded(dtype: DType, value: str) -> str:
    """Source of a computed value brought to the precision of its type."""
    return f"{dtype}_to_f32(f32_to_{dtype}({value}))" if is_narrow(dtype) else value


def can_cast(source: DType, target: DType) -> bool:
    """Whether `cast` gives the value that the definition asks for: no double rounding."""
    if source not in COMPUTED or target not in COMPUTED:
        return False
    return not (is_narrow(target) and source.is_integer and source.bits == 64)


def cast(value: str, source: DType, target: DType) -> str:
    """Source of a register value converted as by `cast`; `can_cast` must hold."""
    if source is target:
        return value
    if not is_narrow(target):
        return f"convert({value}, {register(target)})"
    if source.bits >= 32 and source is not dtypes.f32:
        value = f"f64_to_f32_odd(convert({value}, np.float64))"
    return rounded(target, f"convert({value}, np.float32)")


def to_accumulator(value: str, source: DType, accumulator: DType) -> str:
    """Source of a register value on its way into a sum: integers wrap, as the sum itself does."""
    if source.is_integer:
        return f"wrapped({value}, {register(accumulator)})"
    return cast(value, source, accumulator)


def constant(value: complex, dtype: DType) -> np.generic:
    """`value` as a NumPy scalar of the register type, to be a global name of a kernel."""
    type_ = np.float32 if is_narrow(dtype) else dtype.numpy.type
    return type_(value)
