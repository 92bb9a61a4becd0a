"""Element types of torch and those of PTIR that mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType, dtypes

DTYPES: Final[Mapping[torch.dtype, DType]] = MappingProxyType(
    {
        torch.bool: dtypes.i1,
        torch.int8: dtypes.si8,
        torch.int16: dtypes.si16,
        torch.int32: dtypes.si32,
        torch.int64: dtypes.si64,
        torch.uint8: dtypes.ui8,
        torch.uint16: dtypes.ui16,
        torch.uint32: dtypes.ui32,
        torch.uint64: dtypes.ui64,
        torch.bfloat16: dtypes.bf16,
        torch.float16: dtypes.f16,
        torch.float32: dtypes.f32,
        torch.float64: dtypes.f64,
    }
)
"""The element types that are converted; complex numbers are left to torch."""


def dtype_of(torch_type: torch.dtype, what: str) -> DType:
    """Return the PTIR type of one of torch; UnsupportedError that names `what` if there is none."""
    found = DTYPES.get(torch_type)
    if found is None:
        name = str(torch_type).removeprefix("torch.")
        raise UnsupportedError(f"{what} has the element type {name}, which is not converted")
    return found
