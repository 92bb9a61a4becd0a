"""The values of a graph of torch while it is converted: tensors, numbers, and lists of them."""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes

Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Tensor | Number"
"""A tensor, or a number, which may be a size that the program has as a symbol."""


def is_number(size: object, number: int | None = None) -> bool:
    """Return whether a size is a number, or that number, without asking about its symbols."""
    return isinstance(size, int) and number in (None, size)


def is_symbol(value: object) -> bool:
    """Return whether a number is a size that is not known yet."""
    return not isinstance(value, (int, float, Tensor)) and hasattr(value, "symbols")


def operand(value: object, dtype: DType) -> Tensor:
    """Return a tensor or number as a tensor of `dtype`; a number has rank 0."""
    if isinstance(value, Tensor):
        return converted(value, dtype)
    return scalar(cast("Number", value), dtype)


def converted(x: Tensor, dtype: DType) -> Tensor:
    """Return x in another element type as torch converts: floats to i1 by `x != 0`."""
    return x if x.dtype == dtype else F.cast(x, dtype)


def scalar(value: Number, dtype: DType) -> Tensor:
    """Return a number as a scalar of `dtype`, rounded to it; integers wrap."""
    if is_symbol(value):
        return converted(size_tensor(cast("int", value)), dtype)
    if dtype.is_integer and isinstance(value, int):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))
    if dtype.is_integer and not math.isfinite(value):
        value = 0
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))


def size_tensor(size: int) -> Tensor:
    """Return a size as an si64 scalar: the sum of as many ones, if it is a symbol."""
    if is_number(size):
        return primitives.constant(np.int64(size))
    return F.sum(F.ones([size], dtypes.si64))


def axis_of(axis: int, x: Tensor) -> int:
    """Return an axis counted from the front; a scalar has one, as torch sees it."""
    return axis % max(x.rank, 1)


def axes_of(axes: int | list[int] | tuple[int, ...] | None, x: Tensor) -> list[int]:
    """Return axes counted from the front, all of them for None or none."""
    if axes is None or axes == [] or axes == ():
        return list(range(x.rank))
    several = [axes] if isinstance(axes, int) else list(axes)
    return [axis % x.rank for axis in several] if x.rank else []
