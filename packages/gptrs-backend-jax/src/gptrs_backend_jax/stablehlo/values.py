"""The values of a module while it is converted: tensors of the program, and what is known.

Known are small constants, and sizes with what is computed of them: modules of JAX with free sizes
compute shapes as integers. Those are polynomials over the symbols of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType, SymbolicDim, dtypes

SMALL: Final = 64
"""Most elements of a constant that is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A small constant. `array` holds numbers, or objects where sizes are among them."""

    array: np.ndarray[Any, np.dtype[Any]]
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return self.array.shape

    @property
    def is_symbolic(self) -> bool:
        """Whether some element is a polynomial over symbols."""
        return self.array.dtype == object and any(
            isinstance(each, SymbolicDim) for each in self.array.flat
        )

    def integers(self) -> list[int]:
        """Return the elements in order as integers or polynomials."""
        held = self.array.reshape(-1)
        return [cast("int", x) if isinstance(x, SymbolicDim) else int(x) for x in held]


Value: TypeAlias = Tensor | Known


def known_sizes(values: Sequence[int], shape: Sequence[int], dtype: DType) -> Known | None:
    """Return integers as known, None where one of them is not in the range of `dtype`."""
    numbers = [each for each in values if not isinstance(each, SymbolicDim)]
    if any(not -(2 ** (dtype.bits - 1)) <= each < 2 ** (dtype.bits - 1) for each in numbers):
        return None
    made = np.empty(len(values), object)
    made[:] = list(values)
    return Known(made.reshape(tuple(shape)), dtype)


def as_tensor(value: Value) -> Tensor:
    """Return a value as a tensor: a constant, or sizes that are computed when it runs."""
    if isinstance(value, Tensor):
        return value
    if not value.is_symbolic:
        return primitives.constant(value.array.astype(value.dtype.numpy))
    elements = [
        primitives.reshape(size_tensor(each, value.dtype), (1,)) for each in value.integers()
    ]
    return primitives.reshape(primitives.concat(elements, 0), value.shape)


def size_tensor(size: int, dtype: DType = dtypes.si64) -> Tensor:
    """Return a size as a scalar: the sum of as many ones, if it is symbolic."""
    if not isinstance(size, SymbolicDim):
        return primitives.constant(np.asarray(size).astype(dtype.numpy))
    ones = primitives.broadcast_to(scalar(1, dtype), (size,))
    return primitives.reduce(ones, "sum", (0,))


def scalar(value: complex, dtype: DType) -> Tensor:
    """Return a number as a scalar."""
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))


def filled(value: complex | Tensor, like: Tensor) -> Tensor:
    """Return a tensor of the type of `like` with one value in each element."""
    held = value if isinstance(value, Tensor) else scalar(value, like.dtype)
    return held if like.rank == 0 else primitives.broadcast_to(held, like.shape)


def spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `x` as it is, or a scalar repeated to `shape`."""
    return x if x.shape == tuple(shape) else primitives.broadcast_to(x, tuple(shape))
