"""The element types of PTIR and their NumPy counterparts (ml_dtypes supplies those NumPy lacks)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np
from msgspec import Struct

from gptrs.errors import ProgramError, UsageError
from gptrs.ir.size_guards import Shape

Kind = Literal["bool", "signed", "unsigned", "float", "complex"]


class DType(Struct, frozen=True, eq=False):
    """An element type: its PTIR name, kind, width in bits, and NumPy storage type.

    There is one object of each type: they are compared by identity.
    """

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[np.generic]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType(name={self.name!r}, kind={self.kind!r}, bits={self.bits})"

    def __copy__(self) -> DType:
        return self

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """Pickle by name, so that copies are the same object."""
        return by_name, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes in a NumPy buffer (4-bit integers take a whole byte)."""
        return self.numpy.itemsize

    @property
    def is_bool(self) -> bool:
        """Whether this is `i1`."""
        return self.kind == "bool"

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type (`i1` is not)."""
        return self.kind in ("signed", "unsigned")

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self.kind == "complex"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        if self.kind == "signed":
            return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        return 0, 2**self.bits - 1

    @property
    def accumulator(self) -> DType:
        """The default accumulate type of sums (PTIR, section Types)."""
        return f32 if self.is_float and self.bits <= 16 else self


i1 = DType("i1", "bool", 1, np.dtype(np.bool_))
si4 = DType("si4", "signed", 4, np.dtype(ml_dtypes.int4))
ui4 = DType("ui4", "unsigned", 4, np.dtype(ml_dtypes.uint4))
si8 = DType("si8", "signed", 8, np.dtype(np.int8))
ui8 = DType("ui8", "unsigned", 8, np.dtype(np.uint8))
si16 = DType("si16", "signed", 16, np.dtype(np.int16))
ui16 = DType("ui16", "unsigned", 16, np.dtype(np.uint16))
si32 = DType("si32", "signed", 32, np.dtype(np.int32))
ui32 = DType("ui32", "unsigned", 32, np.dtype(np.uint32))
si64 = DType("si64", "signed", 64, np.dtype(np.int64))
ui64 = DType("ui64", "unsigned", 64, np.dtype(np.uint64))
f8e4m3 = DType("f8e4m3", "float", 8, np.dtype(ml_dtypes.float8_e4m3fn))
f8e5m2 = DType("f8e5m2", "float", 8, np.dtype(ml_dtypes.float8_e5m2))
bf16 = DType("bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
f16 = DType("f16", "float", 16, np.dtype(np.float16))
f32 = DType("f32", "float", 32, np.dtype(np.float32))
f64 = DType("f64", "float", 64, np.dtype(np.float64))
cf32 = DType("cf32", "complex", 64, np.dtype(np.complex64))
cf64 = DType("cf64", "complex", 128, np.dtype(np.complex128))

ALL: tuple[DType, ...] = (
    i1, si4, ui4, si8, ui8, si16, ui16, si32, ui32, si64, ui64,
    f8e4m3, f8e5m2, bf16, f16, f32, f64, cf32, cf64,
)  # fmt: skip
INTEGERS: tuple[DType, ...] = tuple(d for d in ALL if d.is_integer)
FLOATS: tuple[DType, ...] = tuple(d for d in ALL if d.is_float)

_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}
_BY_PYTHON: dict[type, DType] = {bool: i1, int: si64, float: f32, complex: cf32}

DTypeLike = DType | str | np.dtype[Any] | type
"""An element type as users name it: `dtypes.f32`, `"f32"`, `"float32"`, `np.float32`, `float`."""


def by_name(name: str) -> DType:
    """Return the dtype called `name` in PTIR; ProgramError lists the known names otherwise."""
    try:
        return _BY_NAME[name]
    except KeyError:
        known = " ".join(_BY_NAME)
        raise ProgramError(f"unknown dtype `{name}`", hint=f"known dtypes: {known}") from None


def dtype_of(value: DTypeLike) -> DType:
    """Return the dtype that a user means: one of PTIR or of NumPy, its name, or a type of Python.

    `bool`, `int`, `float` and `complex` are i1, si64, f32 and cf32, as elements of lists are.
    ProgramError with the known names otherwise.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    try:
        found = np.dtype(cast("Any", value))
    except (TypeError, ValueError, SyntaxError):  # texts of some forms are parsed as Python
        return by_name(str(value))
    return from_numpy(found)


def from_numpy(dtype: np.dtype[np.generic]) -> DType:
    """Return the PTIR dtype of a NumPy dtype.

    Raises ProgramError if PTIR has none (e.g. strings, objects).
    """
    found = _BY_NUMPY.get(dtype)
    if found is not None:
        return found
    native = dtype.newbyteorder("=") if dtype.kind in "iufc" else dtype
    try:
        return _BY_NUMPY[native]
    except KeyError:
        raise ProgramError(
            f"NumPy dtype `{dtype}` has no PTIR counterpart",
            hint=f"convert the array to one of: {' '.join(str(d.numpy) for d in ALL)}",
        ) from None


# The storage form of 4-bit integers, two a byte; in memory each of them takes a byte.


def pack_int4(array: np.ndarray) -> np.ndarray:
    """Return the elements of an `si4` or `ui4` array in row-major order as ui8[(size + 1) // 2].

    Element 2i is the low half of byte i and element 2i + 1 the high half, in two's complement for
    `si4`; an odd last one is padded with 0. UsageError for other element types.
    """
    _require_4_bits(from_numpy(array.dtype))
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
    return (values if dtype is ui4 else (values ^ 8) - 8).astype(dtype.numpy)


def _require_4_bits(dtype: DType) -> None:
    if dtype not in (si4, ui4):
        raise UsageError(f"two elements a byte are for si4 and ui4, got {dtype}")
