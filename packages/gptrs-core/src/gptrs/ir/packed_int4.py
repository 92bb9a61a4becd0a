"""The storage form of 4-bit integers, two a byte; in memory each of them takes a byte."""

from __future__ import annotations

import math

import numpy as np

from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.shapes import Shape


def pack_int4(array: np.ndarray) -> np.ndarray:
    """Return the elements of an `si4` or `ui4` array in row-major order as ui8[(size + 1) // 2].

    Element 2i is the low half of byte i and element 2i + 1 the high half, in two's complement for
    `si4`; an odd last one has 0 beside it. UsageError for other element types.
    """
    _require_4_bits(dtypes.from_numpy(array.dtype))
    halves = np.zeros(array.size + array.size % 2, np.uint8)
    # NumPy keeps the sign, or anything, in the upper half of the byte of an element.
    halves[: array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & 0xF
    return halves[0::2] | halves[1::2] << 4


def unpack_int4(packed: np.ndarray, dtype: DType, shape: Shape) -> np.ndarray:
    """Return the array of `shape` and of `si4` or `ui4` that `pack_int4` made `packed` of.

    UsageError for other element types, another number of bytes, and a last half that is not 0
    though no element is stored in it.
    """
    _require_4_bits(dtype)
    size = math.prod(shape)
    if packed.dtype != np.uint8 or packed.shape != ((size + 1) // 2,):
        wanted = f"`{dtype}{list(shape)}` packed is ui8[{(size + 1) // 2}]"
        raise UsageError(f"{wanted}, got `{packed.dtype}{list(packed.shape)}`")
    halves = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(-1)
    if halves[size:].any():
        raise UsageError(f"the unused half of the last byte must be 0, got {halves[-1]}")
    values = halves[:size].reshape(shape).astype(np.int8)
    return (values if dtype is dtypes.ui4 else (values ^ 8) - 8).astype(dtype.numpy)


def _require_4_bits(dtype: DType) -> None:
    if dtype not in (dtypes.si4, dtypes.ui4):
        raise UsageError(f"two elements a byte are for si4 and ui4, got {dtype}")
