"""Functionals that combine the elements along axes into one each.

`axis` is one axis, several, or None for all; negative ones count from the end, and `keepdims` keeps
each with size 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.primitives.computing import CumulativeKind
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    INEXACT,
    NUMBERS,
    ORDERED,
    REALS,
    Axes,
    axes_of,
    axis_of,
    converted,
    expand,
    require_dtype,
    require_float,
    require_made_dtype,
    splat,
    widened,
)
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, DTypeLike, dtype_of, i1
from gptrs.ir.symbolic_dim import SymbolicDim, symbols_of


@functional
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum of numbers, 0 over no elements; 8- and 16-bit floats are added in f32, integers wrap.

    The result has the element type of `x`: `cast` first for a wider one, or to count i1.
    """
    require_dtype("sum", NUMBERS, x=x)
    return primitives.reduce(x, "sum", axes_of("sum", axis, x), keepdims)


@functional
def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product of numbers, 1 over no elements; kept and typed as by `sum`."""
    require_dtype("prod", NUMBERS, x=x)
    return primitives.reduce(x, "prod", axes_of("prod", axis, x), keepdims)


@functional
def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest of reals, NaN if any is; over no elements -inf or the least value."""
    require_dtype("max", REALS, x=x)
    return primitives.reduce(x, "max", axes_of("max", axis, x), keepdims)


@functional
def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest of reals, NaN if any is; over no elements inf or the greatest value."""
    require_dtype("min", REALS, x=x)
    return primitives.reduce(x, "min", axes_of("min", axis, x), keepdims)


@functional
def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Logical or of i1 elements; false over no elements."""
    require_dtype("any", (i1,), x=x)
    return primitives.reduce(x, "or", axes_of("any", axis, x), keepdims)


@functional
def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Logical and of i1 elements; true over no elements."""
    require_dtype("all", (i1,), x=x)
    return primitives.reduce(x, "and", axes_of("all", axis, x), keepdims)


@functional
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`sum(x) / count` of floats or complex numbers; NaN over no elements.

    8- and 16-bit floats are added and divided in f32 and rounded once.
    """
    require_dtype("mean", INEXACT, x=x)
    wide = _mean(x, axes_of("mean", axis, x), keepdims)
    return converted(wide, x.dtype)


@functional
def variance(x: Tensor, axis: Axes = None, correction: int = 0, keepdims: bool = False) -> Tensor:
    """`sum((x - mean(x))^2) / max(count - correction, 0)` of floats, computed in that order.

    The rounding error of the mean is subtracted, too, so equal elements have variance 0. Correction
    0 is NumPy's default, 1 (Bessel) is torch's. NaN if the divisor is 0 or there are no elements.
    8- and 16-bit floats are computed in f32 and rounded once.
    """
    require_float("variance", x=x)
    return converted(_variance(x, axes_of("variance", axis, x), correction, keepdims), x.dtype)


@functional
def variance_and_mean(
    x: Tensor, axis: Axes = None, correction: int = 0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """The `variance` of floats and the mean that it is about, computed once for both.

    Unlike in `mean`, the mean of equal elements is exactly their value: its rounding error is added
    back. Both are rounded once (`torch.var_mean`).
    """
    require_float("variance_and_mean", x=x)
    axes = axes_of("variance_and_mean", axis, x)
    wide = widened(x)
    first = bounded_mean(wide, axes)
    rest = bounded_mean(primitives.sub(wide, expand(first, x.shape)), axes)
    found = _variance(x, axes, correction, keepdims)
    mean = primitives.reshape(primitives.add(first, rest), found.shape)
    return converted(found, x.dtype), converted(mean, x.dtype)


@functional
def std(x: Tensor, axis: Axes = None, correction: int = 0, keepdims: bool = False) -> Tensor:
    """The square root of `variance`, rounded once."""
    require_float("std", x=x)
    wide = _variance(x, axes_of("std", axis, x), correction, keepdims)
    # A square root has no derivative at 0: of equal elements, it is that of the variance, 0.
    differs = primitives.compare(wide, splat(0, wide.dtype, wide.shape), "gt")
    root = primitives.sqrt(primitives.select(differs, wide, splat(1, wide.dtype, wide.shape)))
    return converted(primitives.select(differs, root, wide), x.dtype)


@functional
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`log(sum(exp(x)))` of floats, with the largest subtracted first to avoid overflow. -inf over
    no elements or if all are -inf, inf if any is. 8- and 16-bit floats are computed in f32 and
    rounded once (`torch.logsumexp`).
    """
    require_float("logsumexp", x=x)
    axes = axes_of("logsumexp", axis, x)
    wide = widened(x)
    peak = primitives.reduce(wide, "max", axes, keepdims=True)
    # inf - inf would be NaN, so an infinite peak is not subtracted
    zero = splat(0, peak.dtype, peak.shape)
    shift = primitives.select(primitives.is_finite(peak), peak, zero)
    powers = primitives.exp(primitives.sub(wide, expand(shift, x.shape)))
    total = primitives.log(primitives.reduce(powers, "sum", axes, keepdims))
    return converted(primitives.add(total, primitives.reshape(shift, total.shape)), x.dtype)


@functional
def argmax(
    x: Tensor, axis: int | None = None, keepdims: bool = False, dtype: DTypeLike = dtypes.si64
) -> Tensor:
    """The index of the largest of reals or i1 along `axis`, or in row-major order for None.

    The first of equals and the first NaN win. `dtype` is si32 or si64. UsageError for no elements.
    """
    wanted = dtype_of(dtype)
    flat, along = _searched("argmax", x, axis, wanted)
    found = primitives.argmax(flat, along, keepdims, wanted)
    return _with_all_dims(found, x) if axis is None and keepdims else found


@functional
def argmin(
    x: Tensor, axis: int | None = None, keepdims: bool = False, dtype: DTypeLike = dtypes.si64
) -> Tensor:
    """The index of the smallest of reals or i1, by the rules of `argmax`; the first NaN wins."""
    wanted = dtype_of(dtype)
    flat, along = _searched("argmin", x, axis, wanted)
    found = primitives.argmin(flat, along, keepdims, wanted)
    return _with_all_dims(found, x) if axis is None and keepdims else found


def _mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Return the sum over the count, in the accumulator type of `x`."""
    wide = x.dtype.accumulator
    out = None if wide is x.dtype else wide
    total = primitives.reduce(x, "sum", axes, keepdims, out_dtype=out)
    count = math.prod(x.shape[axis] for axis in axes)
    return primitives.div(total, splat(count, wide, total.shape))


def _variance(x: Tensor, axes: tuple[int, ...], correction: int, keepdims: bool) -> Tensor:
    apart = centered(widened(x), axes)
    return bounded_mean(primitives.mul(apart, apart), axes, keepdims, correction)


def centered(x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x - mean(x)` over `axes`, of floats in the type in which they accumulate.

    Subtracts twice: the second mean is the rounding error of the first, which would dominate if the
    elements vary much less than their mean differs from 0. Equal elements give exactly 0.
    """
    for _ in range(2):
        x = primitives.sub(x, expand(bounded_mean(x, axes), x.shape))
    return x


def bounded_mean(
    x: Tensor, axes: Sequence[int], keepdims: bool = True, correction: int = 0
) -> Tensor:
    """Return the sum of floats over count - correction; no sum overflows unless the mean does.

    Elements are scaled by a power of two, so the bits equal those of `sum(x) / count`.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    # A power of two scales exactly unless elements become subnormal; dividing by the count first
    # would round every element.
    exponent = _exponent(count)
    scaled = primitives.mul(x, splat(math.ldexp(1.0, -exponent), x.dtype, x.shape))
    total = primitives.reduce(scaled, "sum", axes, keepdims)
    if isinstance(count, SymbolicDim):
        scale = splat(math.ldexp(1.0, -exponent), x.dtype)
        above = count - correction if count > correction else 0
        share = primitives.mul(splat(above, x.dtype), scale)
        return primitives.div(total, expand(share, total.shape))
    share = math.ldexp(count - correction, -exponent) if count > correction else 0
    return primitives.div(total, splat(share, x.dtype, total.shape))


def _exponent(count: int) -> int:
    """Return an exponent of two above a count; for a symbolic count, that of its class.

    There are two classes, so at most two programs cover all sizes.
    """
    if not isinstance(count, SymbolicDim):
        return math.frexp(count)[1]
    return 12 if count < 2**12 else 31


def _searched(name: str, x: Tensor, axis: int | None, dtype: DType) -> tuple[Tensor, int]:
    """`x`, flat if `axis` is None, and the axis to search."""
    require_dtype(name, ORDERED, x=x)
    require_made_dtype(name, (dtypes.si32, dtypes.si64), dtype)
    flat = primitives.reshape(x, (x.type.size,)) if axis is None else x
    along = 0 if axis is None else axis_of(name, axis, x)
    if flat.shape[along] == 0:
        raise UsageError(f"`{name}` of `{x.type}` has no elements to choose from")
    return flat, along


def _with_all_dims(found: Tensor, x: Tensor) -> Tensor:
    return primitives.reshape(found, (1,) * x.rank)


# Functionals of ordered axes: running totals, sorting, top k.


@functional
def cumsum(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The sums of numbers along `axis` up to each element, in the type of `x`; integers wrap.

    `reverse` sums from each element to the end, and `exclusive` excludes the element itself. 8- and
    16-bit floats are added in f32 and each result rounded (`np.cumsum`, except for the types).
    """
    return _cumulative("cumsum", NUMBERS, "sum", x, axis, reverse, exclusive)


@functional
def cumprod(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The products of numbers along `axis` up to each element, as `cumsum` (`np.cumprod`)."""
    return _cumulative("cumprod", NUMBERS, "prod", x, axis, reverse, exclusive)


@functional
def cummax(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The largest of reals along `axis` up to each element; propagates NaN
    (`np.maximum.accumulate`).

    `exclusive` gives the first -inf, or the least value of an integer type.
    """
    return _cumulative("cummax", REALS, "max", x, axis, reverse, exclusive)


@functional
def cummin(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The smallest of reals along `axis` up to each element; propagates NaN
    (`np.minimum.accumulate`).

    `exclusive` gives the first inf, or the greatest value of an integer type.
    """
    return _cumulative("cummin", REALS, "min", x, axis, reverse, exclusive)


@functional
def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Reals or i1 in ascending order along `axis`, stable; NaN counts as greatest (`np.sort`)."""
    require_dtype("sort", ORDERED, x=x)
    (values,) = primitives.sort([x], axis_of("sort", axis, x), descending)
    return values


@functional
def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """si64: the indices that sort `x` along `axis`; equal elements keep their order.

    `gather(x, argsort(x, axis), axis)` is `sort(x, axis)` (`np.argsort` with kind "stable").
    """
    require_dtype("argsort", ORDERED, x=x)
    along = axis_of("argsort", axis, x)
    positions = primitives.iota(x.shape, along, dtypes.si64)
    _, order = primitives.sort([x, positions], along, descending)
    return order


@functional
def top_k(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) of reals or i1 along `axis` in their order, and si64 indices.

    Among equal elements the smaller index comes first; NaN counts as greatest. UsageError unless 0
    <= k <= the size of the axis (`torch.topk`).
    """
    require_dtype("top_k", ORDERED, x=x)
    along = axis_of("top_k", axis, x)
    if not 0 <= k <= x.shape[along]:
        raise UsageError(f"`top_k` cannot give {k} elements of axis {along} of `{x.type}`")
    if not symbols_of((k,)):
        return primitives.top_k(x, k, along, largest, dtypes.si64)
    positions = primitives.iota(x.shape, along, dtypes.si64)
    shape = [k if axis == along else size for axis, size in enumerate(x.shape)]
    values, order = (
        primitives.slice(each, [0] * x.rank, shape)
        for each in primitives.sort([x, positions], along, largest)
    )
    return values, order


def _cumulative(
    name: str,
    allowed: tuple[DType, ...],
    kind: CumulativeKind,
    x: Tensor,
    axis: int,
    reverse: bool,
    exclusive: bool,
) -> Tensor:
    require_dtype(name, allowed, x=x)
    return primitives.cumulative(x, kind, axis_of(name, axis, x), reverse, exclusive)
