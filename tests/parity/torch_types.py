"""The element types that torch shares with PTIR, and arrays on their way between the two."""

from __future__ import annotations

from typing import Any

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

INTEGERS = (dtypes.ui8, dtypes.si8, dtypes.si16, dtypes.si32, dtypes.si64)
"""The integer types on which torch has all of its arithmetic."""
FLOATS = (dtypes.bf16, dtypes.f16, dtypes.f32, dtypes.f64)
NARROW = (dtypes.f8e4m3, dtypes.f8e5m2)
"""Float types that torch stores and converts but does not compute in."""

_NAMES = {
    "i1": "bool",
    "ui8": "uint8",
    "si8": "int8",
    "si16": "int16",
    "si32": "int32",
    "si64": "int64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "cf32": "complex64",
    "cf64": "complex128",
}
_CARRIERS = {"bf16": "int16", "f8e4m3": "uint8", "f8e5m2": "uint8"}
"""Types that torch and NumPy exchange as integers of the same width."""


def torch_dtype(torch: Any, dtype: DType) -> Any:
    """What torch calls `dtype`."""
    return getattr(torch, _NAMES[dtype.name])


def to_torch(torch: Any, array: np.ndarray) -> Any:
    """A torch tensor with the bits of `array`."""
    dtype = dtypes.from_numpy(array.dtype)
    carrier = _CARRIERS.get(dtype.name)
    if carrier is None:
        return torch.from_numpy(np.array(array))
    return torch.from_numpy(np.array(array).view(carrier)).view(torch_dtype(torch, dtype))


def from_torch(torch: Any, tensor: Any, dtype: DType) -> np.ndarray:
    """An array of `dtype` with the bits of `tensor`, which must be of that type."""
    assert tensor.dtype == torch_dtype(torch, dtype)
    carrier = _CARRIERS.get(dtype.name)
    if carrier is None:
        return tensor.contiguous().numpy()
    return tensor.contiguous().view(getattr(torch, carrier)).numpy().view(dtype.numpy)
