"""Element types of ONNX and those of PTIR that mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onnx_ir import DataType

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType, dtypes

DTYPES: Final[Mapping[DataType, DType]] = MappingProxyType(
    {
        DataType.BOOL: dtypes.i1,
        DataType.INT4: dtypes.si4,
        DataType.INT8: dtypes.si8,
        DataType.INT16: dtypes.si16,
        DataType.INT32: dtypes.si32,
        DataType.INT64: dtypes.si64,
        DataType.UINT4: dtypes.ui4,
        DataType.UINT8: dtypes.ui8,
        DataType.UINT16: dtypes.ui16,
        DataType.UINT32: dtypes.ui32,
        DataType.UINT64: dtypes.ui64,
        DataType.FLOAT8E4M3FN: dtypes.f8e4m3,
        DataType.FLOAT8E5M2: dtypes.f8e5m2,
        DataType.BFLOAT16: dtypes.bf16,
        DataType.FLOAT16: dtypes.f16,
        DataType.FLOAT: dtypes.f32,
        DataType.DOUBLE: dtypes.f64,
        DataType.COMPLEX64: dtypes.cf32,
        DataType.COMPLEX128: dtypes.cf64,
    }
)
"""The element types that ONNX and PTIR share."""
ONNX_TYPES: Final[Mapping[DType, DataType]] = MappingProxyType(
    {dtype: onnx_type for onnx_type, dtype in DTYPES.items()}
)


def dtype_of(onnx_type: DataType | int, what: str) -> DType:
    """Return the PTIR type of an ONNX one; UnsupportedError that names `what` if there is none."""
    try:
        found = DTYPES.get(DataType(onnx_type))
        name = DataType(onnx_type).name
    except ValueError:
        found, name = None, f"number {int(onnx_type)}"
    if found is None:
        raise UnsupportedError(f"{what} has the element type {name}, which PTIR does not have")
    return found
