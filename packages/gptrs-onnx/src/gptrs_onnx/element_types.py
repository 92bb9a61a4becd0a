"""Element types of ONNX: those of PTIR that mean the same, or that hold all their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.onnx_ir import ir

DTYPES: Final[Mapping[ir.DataType, DType]] = MappingProxyType(
    {
        ir.DataType.BOOL: dtypes.i1,
        ir.DataType.INT4: dtypes.si4,
        ir.DataType.INT8: dtypes.si8,
        ir.DataType.INT16: dtypes.si16,
        ir.DataType.INT32: dtypes.si32,
        ir.DataType.INT64: dtypes.si64,
        ir.DataType.UINT4: dtypes.ui4,
        ir.DataType.UINT8: dtypes.ui8,
        ir.DataType.UINT16: dtypes.ui16,
        ir.DataType.UINT32: dtypes.ui32,
        ir.DataType.UINT64: dtypes.ui64,
        ir.DataType.FLOAT8E4M3FN: dtypes.f8e4m3,
        ir.DataType.FLOAT8E5M2: dtypes.f8e5m2,
        ir.DataType.BFLOAT16: dtypes.bf16,
        ir.DataType.FLOAT16: dtypes.f16,
        ir.DataType.FLOAT: dtypes.f32,
        ir.DataType.DOUBLE: dtypes.f64,
        ir.DataType.COMPLEX64: dtypes.cf32,
        ir.DataType.COMPLEX128: dtypes.cf64,
    }
)
"""The element types that ONNX and PTIR share."""
ONNX_TYPES: Final[Mapping[DType, ir.DataType]] = MappingProxyType(
    {dtype: onnx_type for onnx_type, dtype in DTYPES.items()}
)
HELD_IN: Final[Mapping[ir.DataType, DType]] = MappingProxyType(
    {
        ir.DataType.INT2: dtypes.si8,
        ir.DataType.UINT2: dtypes.ui8,
        ir.DataType.FLOAT4E2M1: dtypes.f16,
        ir.DataType.FLOAT8E4M3FNUZ: dtypes.f16,
        ir.DataType.FLOAT8E5M2FNUZ: dtypes.f16,
        ir.DataType.FLOAT8E8M0: dtypes.f32,
        ir.DataType.STRING: dtypes.si64,
    }
)
"""Element types that PTIR lacks, and the narrowest one that has all of their numbers.

Strings are held as their codes in the table of their model.
"""
_BY_NUMPY: Final = {each.numpy(): each for each in HELD_IN if each != ir.DataType.STRING}


def narrow_type(dtype: np.dtype[Any]) -> ir.DataType | None:
    """Return the ONNX type of a NumPy type that PTIR lacks; None for any other one."""
    return _BY_NUMPY.get(dtype)


def is_read(onnx_type: ir.DataType) -> bool:
    """Return whether values of this type are read."""
    return onnx_type in DTYPES or onnx_type in HELD_IN


def stored_dtype(onnx_type: ir.DataType, what: str) -> DType:
    """Return the PTIR type that holds an ONNX one; UnsupportedError that names `what` if none."""
    return HELD_IN.get(onnx_type) or dtype_of(onnx_type, what)


def dtype_of(onnx_type: ir.DataType | int, what: str) -> DType:
    """Return the PTIR type of an ONNX one; UnsupportedError that names `what` if there is none."""
    try:
        found = DTYPES.get(ir.DataType(onnx_type))
        name = ir.DataType(onnx_type).name
    except ValueError:
        found, name = None, f"number {int(onnx_type)}"
    if found is None:
        raise UnsupportedError(f"{what} has the element type {name}, which PTIR does not have")
    return found
