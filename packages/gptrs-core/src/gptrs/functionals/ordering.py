"""Functionals along one axis that keep its order or make one: running totals, sorting, top k."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.primitives.reduction import CumulativeKind
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import NUMBERS, ORDERED, REALS, axis_of, require_dtype
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType


@functional
def cumsum(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The sums of numbers along `axis` up to each element, in the type of `x`; integers wrap.

    `reverse` sums from each to the end, and `exclusive` leaves the element itself out. 8- and
    16-bit floats are added in f32 and each result rounded (`np.cumsum`, but for the types).
    """
    return _cumulative("cumsum", NUMBERS, "sum", x, axis, reverse, exclusive)


@functional
def cumprod(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The products of numbers along `axis` up to each element, as `cumsum` (`np.cumprod`)."""
    return _cumulative("cumprod", NUMBERS, "prod", x, axis, reverse, exclusive)


@functional
def cummax(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The largest of reals along `axis` up to each element; NaN stays (`np.maximum.accumulate`).

    `exclusive` gives the first -inf, or the least value of an integer type.
    """
    return _cumulative("cummax", REALS, "max", x, axis, reverse, exclusive)


@functional
def cummin(x: Tensor, axis: int, reverse: bool = False, exclusive: bool = False) -> Tensor:
    """The smallest of reals along `axis` up to each element; NaN stays (`np.minimum.accumulate`).

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
    """si64: where the elements of `sort` were along `axis`; equal ones keep their order.

    `gather(x, argsort(x, axis), axis)` is `sort(x, axis)` (`np.argsort` with kind "stable").
    """
    require_dtype("argsort", ORDERED, x=x)
    along = axis_of("argsort", axis, x)
    places = primitives.iota(x.shape, along, dtypes.si64)
    _, order = primitives.sort([x, places], along, descending)
    return order


@functional
def top_k(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) of reals or i1 along `axis` in their order, and si64 indices.

    Of equal elements the one with the smaller index comes first; NaN counts as greatest. UsageError
    unless 0 <= k <= the size of the axis (`torch.topk`).
    """
    require_dtype("top_k", ORDERED, x=x)
    along = axis_of("top_k", axis, x)
    if not 0 <= k <= x.shape[along]:
        raise UsageError(f"`top_k` cannot give {k} elements of axis {along} of `{x.type}`")
    return primitives.top_k(x, k, along, largest, dtypes.si64)


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
