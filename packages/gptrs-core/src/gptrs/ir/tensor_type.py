"""The type of a tensor: an element type and a row-major shape."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import SymbolicDim, is_negative, symbols_of

MAX_ELEMENTS = 2**48
"""Most elements a tensor may have: larger products are refused before anything is allocated."""

MAX_RANK = 32
"""Most axes of a tensor: NumPy's limit is 64, and kernels add axes of their own."""


class TensorType(Struct, frozen=True):
    """`dtype[shape]`, written `f32[2, 3]`; rank 0 is `f32[]`, zero-sized dims are legal.

    A dim may be a SymbolicDim, `f32[?0, 2*?0+1]`, until the program is specialized.
    """

    dtype: DType
    shape: Shape

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise ProgramError(f"a tensor type has at most {MAX_RANK} axes, got {len(self.shape)}")
        elements = 1
        for dim in self.shape:
            if is_negative(dim):
                raise ProgramError(f"a tensor type needs dims >= 0, got `{self}`")
            # A dim of 0 must not hide an overflow of the others, from which strides are computed.
            if not isinstance(dim, SymbolicDim):
                elements *= dim or 1
        if elements > MAX_ELEMENTS:
            raise ProgramError(f"`{self}` has more than 2^48 elements")

    def __hash__(self) -> int:
        # Keys of compiled steps hold hundreds of types that mostly differ in shape alone, so only
        # the shape is hashed.
        return hash(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return SymbolicDim not in map(type, self.shape)

    @property
    def symbols(self) -> frozenset[int]:
        """The numbers of the symbols in the dims: `{0, 1}` for `f32[?0, ?1+2]`."""
        return symbols_of(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense NumPy buffer of this type."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> TensorType:
        """Return the same element type with another shape."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """Return the same shape with another element type."""
        return TensorType(dtype, self.shape)

    @classmethod
    def of(cls, array: np.ndarray) -> TensorType:
        """Return the type of a NumPy array; ProgramError if its dtype has no PTIR counterpart."""
        return cls(dtypes.from_numpy(array.dtype), tuple(int(dim) for dim in array.shape))
