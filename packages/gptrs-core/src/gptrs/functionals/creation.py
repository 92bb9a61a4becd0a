"""Functionals that make a tensor from numbers, or keep elements by where they are."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.primitives.elementwise import Direction
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import NUMBERS, Number, require_made_dtype, splat
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.creation import count_of_exact_indices
from gptrs.ir.symbolic_dim import exceeds


@functional
def arange(count: int, start: Number = 0, step: Number = 1, dtype: DType = dtypes.si64) -> Tensor:
    """`start + i * step` for i in 0 .. count - 1, computed in `dtype`, any type of numbers.

    UsageError for a negative count, and for one whose indices `dtype` does not hold exactly.
    """
    require_made_dtype("arange", NUMBERS, dtype)
    if count < 0:
        raise UsageError(f"`arange` needs a count >= 0, got {count}")
    index_type = dtypes.f64 if dtype.is_complex else dtype
    most = count_of_exact_indices(index_type)
    if exceeds(count, most):
        raise UsageError(
            f"`arange` of {count} elements counts past {most - 1}, the last index exact in {dtype}",
            hint="count in a wider type, then cast",
        )
    shape = (count,)
    indices = primitives.iota(shape, 0, index_type)
    if dtype.is_complex:
        indices = primitives.cast(indices, dtype)
    scaled = indices if step == 1 else primitives.mul(indices, splat(step, dtype, shape))
    return primitives.add(scaled, splat(start, dtype, shape)) if start else scaled


@functional
def full(shape: Sequence[int], value: Number, dtype: DType = dtypes.f32) -> Tensor:
    """`value` everywhere; UsageError if `dtype` cannot hold it, or for a negative dim."""
    if any(size < 0 for size in shape):
        raise UsageError(f"`full` needs dims >= 0, got {list(shape)}")
    return splat(value, dtype, tuple(shape))


@functional
def zeros(shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
    """0 everywhere, False for i1."""
    return full(shape, False, dtype)


@functional
def ones(shape: Sequence[int], dtype: DType = dtypes.f32) -> Tensor:
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
