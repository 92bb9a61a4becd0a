"""Functionals that make a tensor from numbers, or select elements by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.examples import pattern_example
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    NUMBERS,
    Number,
    converted,
    expand,
    require_dtype,
    require_integer,
    require_made_dtype,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DTypeLike, dtype_of
from gptrs.ir.ops.creation import count_of_exact_indices
from gptrs.ir.ops.elementwise import Direction
from gptrs.ir.size_guards import broadcast_shapes
from gptrs.ir.symbolic_dim import SymbolicDim, exceeds


@functional
def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: DTypeLike | None = None
) -> Tensor:
    """Numbers from `start` to below `stop`, computed as `start + i * step` (`np.arange`).

    A single number is `stop`, with `start` 0. `dtype` is any type of numbers; None: f32 if one of
    the numbers is a float, si64 otherwise. UsageError for a step of 0, for more indices than
    `dtype` holds exactly, and for a step other than 1 between symbolic sizes.
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
    """Return the number of elements, 0 if the steps lead away from `stop`."""
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


# Matrix products and the affine map.


@functional
def matmul(lhs: Tensor | np.ndarray, rhs: Tensor | np.ndarray) -> Tensor:
    """The matrix product by NumPy's rules: [B.., M, K] @ [B.., K, N] -> [B.., M, N].

    A vector on the left counts as [1, K], on the right as [K, 1], and the added axis is dropped
    from the result. Batch dims broadcast. NumPy arrays become tensors. UsageError for scalars or
    when the K differ.
    """
    lhs, rhs = (Tensor.of_array(x) if isinstance(x, np.ndarray) else x for x in (lhs, rhs))
    require_same_dtype("matmul", lhs, rhs)
    if not lhs.rank or not rhs.rank or lhs.shape[-1] != rhs.shape[max(rhs.rank - 2, 0)]:
        raise UsageError(
            f"`matmul` of `{lhs.type}` and `{rhs.type}`: the last axis of the left"
            " must match the one before the last of the right"
        )
    batch = broadcast_shapes([lhs.shape[:-2], rhs.shape[:-2]], "`matmul`")
    if not rhs.shape[:-2]:
        return primitives.dot_general(lhs, rhs, ([-1], [max(rhs.rank - 2, 0)]))
    if lhs.rank == 1:
        lhs = expand(lhs, (*batch, lhs.shape[0]))
        axes = range(len(batch))
        return primitives.dot_general(lhs, rhs, ([-1], [-2]), (axes, axes))
    lhs = expand(lhs, batch + lhs.shape[-2:])
    rhs = expand(rhs, batch + rhs.shape[-2:])
    axes = range(len(batch))
    return primitives.dot_general(lhs, rhs, ([-1], [-2]), (axes, axes))


@pattern_example(x="f32[2, 3]", weight="f32[4, 3]", bias="f32[4]", layout="out_in")
@pattern_example(x="f32[2, 3]", weight="f32[3, 4]", bias="f32[4]", layout="in_out")
@pattern_example(x="f32[2, 3]", weight="f32[4, 3]", layout="out_in")
@pattern_example(x="f32[2, 3]", weight="f32[3, 4]", layout="in_out")
@functional(composite=True)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: Literal["out_in", "in_out"] = "out_in",
) -> Tensor:
    """`x W^T + b`: x [..., I], bias [O] -> [..., O], all of one element type.

    `weight` is [O, I] (torch's `Linear`) by default, [I, O] (GPT-2's `Conv1D`) with
    `layout="in_out"`.
    """
    if layout not in ("out_in", "in_out"):
        raise UsageError(f'`linear` takes layout="out_in" or "in_out", got {layout!r}')
    require_same_dtype("linear", x, weight, *([] if bias is None else [bias]))
    contracted = 1 if layout == "out_in" else 0
    if weight.rank != 2 or x.rank == 0 or x.shape[-1] != weight.shape[contracted]:
        raise UsageError(
            f"`linear` cannot map `{x.type}` with a weight of `{weight.type}` ({layout})"
        )
    product = primitives.dot_general(x, weight, ([-1], [contracted]))
    if bias is None:
        return product
    require_shape("linear", "bias", bias, product.shape[-1:])
    return primitives.add(product, expand(bias, product.shape))


# Products of each row with a matrix of its choice: mixtures of experts.


_FLOATS = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)


@functional(composite=True)
def grouped_linear(x: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
    """Row r of x times the transposed matrix `weight[groups[r]]`: [R, I], [G, O, I] -> [R, O].

    Only the matrices that `groups` [R], integers, names are read (the experts of Shazeer et al.
    2017). `x` and `weight` are of one type of f16, bf16, f32 and f64. A group outside [0, G) raises
    ExecutionError when it runs. UsageError for operands that do not fit.
    """
    require_dtype("grouped_linear", _FLOATS, x=x, weight=weight)
    require_integer("grouped_linear", groups=groups)
    if x.rank != 2 or weight.rank != 3 or x.shape[1] != weight.shape[2] or x.dtype != weight.dtype:
        raise UsageError(
            "`grouped_linear` needs x [R, I] and weight [G, O, I] of one element type,"
            f" got `{x.type}` and `{weight.type}`"
        )
    require_shape("grouped_linear", "groups", groups, (x.shape[0],))

    def row(values: Tensor, group: Tensor) -> Tensor:
        return primitives.dot_general(primitives.take(weight, group), values, ([1], [0]))

    _, (found,) = primitives.scan(row, [], [x, converted(groups, dtypes.si64)])
    return found
