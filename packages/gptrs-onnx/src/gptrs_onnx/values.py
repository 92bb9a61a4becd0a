"""The values of an ONNX graph while it is converted: known, or tensors of the program.

Known values are NumPy arrays: small constants, and sizes. The shape of a tensor with free sizes is
an array of objects, integers and polynomials over the symbols of the program. Operators that need
numbers, such as the shape of `Reshape`, get them from known values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes

Known: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array whose elements are known: numbers, or sizes (dtype object) that may be symbolic."""
Value: TypeAlias = Tensor | Known

SMALL: Final = 4096
"""Most elements of a constant that is known; larger ones are weights."""


def is_number(size: object, number: int | None = None) -> bool:
    """Return whether a size is a number, or that number, without asking about its symbols."""
    return isinstance(size, int) and number in (None, size)


def is_symbolic(known: Known) -> bool:
    """Return whether some element is a polynomial over symbols."""
    return known.dtype == object and not all(map(is_number, known.flat))


def settled(known: Known) -> Known:
    """Return sizes as si64 numbers where no symbol is among them, anything else as it is."""
    if known.dtype == object and not is_symbolic(known):
        return known.astype(np.int64)
    return known


def sizes(values: Sequence[int]) -> Known:
    """Return sizes as a known vector, of objects if some are symbolic."""
    made = np.empty(len(values), dtype=object)
    made[:] = list(values)
    return settled(made)


def numbers(known: Known) -> list[int]:
    """Return the elements in order as Python integers or polynomials."""
    return [each if known.dtype == object else int(each) for each in known.reshape(-1)]


def as_tensor(value: Value) -> Tensor:
    """Return the value as a tensor; what is known becomes a constant, symbols become computed."""
    if isinstance(value, Tensor):
        return value
    if not is_symbolic(value):
        return constant(settled(value))
    elements = [_size_tensor(each) for each in value.reshape(-1)]
    return F.reshape(F.stack(elements, 0), value.shape)


def constant(array: Known) -> Tensor:
    """Return an array as a constant of the program."""
    return primitives.constant(array)


def _size_tensor(size: int) -> Tensor:
    """Return a size as an si64 scalar: the sum of as many ones, if it is symbolic."""
    if is_number(size):
        return primitives.constant(np.int64(size))
    return F.sum(F.ones([size], dtypes.si64))


def scalar(value: float, dtype: DType) -> Tensor:
    """Return a number as a scalar of `dtype`, rounded to it."""
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))
