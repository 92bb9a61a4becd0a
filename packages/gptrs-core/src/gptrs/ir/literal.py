"""Dense constant tensors, compared and hashed by their bits so that NaN and -0.0 keep identity."""

from __future__ import annotations

from typing import NewType

import numpy as np

from gptrs.errors import ProgramError
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A tensor value: its type and its elements in row-major order, in the NumPy storage format."""

    type: TensorType
    data: bytes

    def __post_init__(self) -> None:
        if not self.type.is_static:
            raise ProgramError(f"a literal has no symbolic dims, got `{self.type}`")
        if len(self.data) != self.type.nbytes:
            raise ProgramError(
                f"a literal of `{self.type}` needs {self.type.nbytes} bytes, got {len(self.data)}"
            )
        bits = self.type.dtype.bits
        if bits < 8 and self.data and int(np.frombuffer(self.data, np.uint8).max()) >> bits:
            raise ProgramError(
                f"a literal of `{self.type}` has an element of more than {bits} bits"
            )

    @classmethod
    def of(cls, array: np.ndarray) -> Literal:
        """Return the literal with the elements of `array`."""
        type_ = TensorType.of(array)
        data = np.ascontiguousarray(array, dtype=type_.dtype.numpy).tobytes()
        if type_.dtype.bits == 4:  # NumPy ignores the upper half of the byte, equality must not
            data = (np.frombuffer(data, np.uint8) & 0xF).tobytes()
        return cls(type_, data)

    @classmethod
    def full(cls, value: complex, dtype: DType, shape: tuple[int, ...] = ()) -> Literal:
        """Return `value` in every element, converted to `dtype` by NumPy's rules."""
        return cls.of(np.full(shape, value, dtype=dtype.numpy))

    @property
    def array(self) -> np.ndarray:
        """A read-only NumPy view of the elements."""
        return np.frombuffer(self.data, dtype=self.type.dtype.numpy).reshape(self.type.shape)

    @property
    def splat(self) -> bytes | None:
        """The bytes of the element that every position holds; None if they differ or at size 0."""
        size = self.type.dtype.itemsize
        first = self.data[:size]
        return first if first and first * self.type.size == self.data else None


Scalar = NewType("Scalar", Literal)
Scalar.__doc__ = (
    "A literal of rank 0, as an attribute: its element type is that of the first result."
)
