"""Element types of ONNX and those of PTIR that mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
