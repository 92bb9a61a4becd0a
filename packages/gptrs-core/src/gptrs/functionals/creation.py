"""Functionals that make a tensor from numbers, or keep elements by where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import NUMBERS, Number, require_made_dtype, splat
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DTypeLike, dtype_of
from gptrs.ir.ops.creation import count_of_exact_indices
from gptrs.ir.ops.elementwise import Direction
from gptrs.ir.symbolic_dim import SymbolicDim, exceeds


@functional
def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: DTypeLike | None = None
) -> Tensor:
    """Numbers from `start` to below `stop`, computed as `start + i * step` (`np.arange`).

    With one number they go from 0 to below it. `dtype` is any type of numbers; None: f32 if one of
    the numbers is a float, si64 otherwise. UsageError for a step of 0, for more indices than
    `dtype` holds exactly, and for a step other than 1 between sizes that are free.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    floats = any(isinstance(number, float) for number in (start, stop, step))
    wanted = (dtypes.f32 if floats else dtypes.si64) if dtype is None else dtype_of(dtype)
    require_made_dtype("arange", NUMBERS, wanted)
    count = _steps(start, stop, step)
    index_type = dtypes.f64 if wanted.is_complex else wanted
    most = count_of_exact_indices(index_type)
    if exceeds(count, most):
        raise UsageError(
            f"`arange` of {count} elements counts past {most - 1}, the last index exact in"
            f" {wanted}",
            hint="count in a wider type, then cast",
        )
    shape = (count,)
    indices = primitives.iota(shape, 0, index_type)
    if wanted.is_complex:
        indices = primitives.cast(indices, wanted)
    scaled = indices if step == 1 else primitives.mul(indices, splat(step, wanted, shape))
    is_zero = not isinstance(start, SymbolicDim) and not start
    return scaled if is_zero else primitives.add(scaled, splat(start, wanted, shape))


def _steps(start: Number, stop: Number, step: Number) -> int:
    """Return how many numbers there are, 0 if the steps lead away from `stop`."""
    if any(isinstance(number, SymbolicDim) for number in (start, stop)):
        if step != 1:
            raise UsageError(
                f"`arange` between sizes that are free takes the step 1, got {step}",
                hint="multiply the numbers by it",
            )
        return cast("int", stop - start)
    try:
        return max(0, math.ceil(cast("float", (stop - start) / step)))
    except (ArithmeticError, TypeError, ValueError):
        raise UsageError(
            f"`arange` cannot go from {start!r} to {stop!r} in steps of {step!r}"
        ) from None


@functional
def full(shape: int | Sequence[int], value: Number, dtype: DTypeLike = dtypes.f32) -> Tensor:
    """`value` everywhere; `shape` is dims, or the number of elements of a vector.

    UsageError if `dtype` cannot hold the value, and for a negative dim.
    """
    dims = (shape,) if isinstance(shape, int | SymbolicDim) else tuple(shape)
    if any(size < 0 for size in dims):
        raise UsageError(f"`full` needs dims >= 0, got {list(dims)}")
    return splat(value, dtype_of(dtype), dims)


@functional
def zeros(shape: int | Sequence[int], dtype: DTypeLike = dtypes.f32) -> Tensor:
    """0 everywhere, False for i1."""
    return full(shape, False, dtype)


@functional
def ones(shape: int | Sequence[int], dtype: DTypeLike = dtypes.f32) -> Tensor:
    """1 everywhere, True for i1."""
    return full(shape, True, dtype)


@functional
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of each matrix [.., M, N], zeros elsewhere, of any element type.

    Element (i, j) is kept where `j <= i + diagonal` (`np.tril`).
    """
    return _triangle("tril", x, diagonal, "le")


@functional
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of each matrix [.., M, N], zeros elsewhere, of any element type.

    Element (i, j) is kept where `j >= i + diagonal` (`np.triu`).
    """
    return _triangle("triu", x, diagonal, "ge")


def _triangle(name: str, x: Tensor, diagonal: int, direction: Direction) -> Tensor:
    if x.rank < 2:
        raise UsageError(f"`{name}` needs matrices [.., M, N], got `{x.type}`")
    row = primitives.iota(x.shape, x.rank - 2, dtypes.si64)
    column = primitives.iota(x.shape, x.rank - 1, dtypes.si64)
    bound = primitives.add(row, splat(diagonal, dtypes.si64, x.shape)) if diagonal else row
    kept = primitives.compare(column, bound, direction)
    return primitives.select(kept, x, splat(False, x.dtype, x.shape))
