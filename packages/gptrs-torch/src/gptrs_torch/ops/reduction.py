"""Reductions along axes, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable

from gptrs.api.importers import is_number, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.ops.activations import truth
from gptrs_torch.program_check import Number, axes_of, axis_of, converted, scalar

Axes = int | list[int] | None
Reduction = Callable[..., Tensor]


@converts.each({"sum": F.sum, "mean": F.mean})
def summed(
    function: Reduction,
    node: Node,
    x: Tensor,
    dim: Axes = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    """Return the sum or the mean; integers are summed in si64."""
    del dtype
    if x.rank == 0:
        return converted(x, node.dtype)
    return function(converted(x, node.dtype), axes_of(dim, x), keepdim)


@converts("prod")
def product(
    node: Node, x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:
    """Return the product."""
    del dtype
    made = converted(x, node.dtype)
    return made if x.rank == 0 else F.prod(made, axes_of(dim, x), keepdim)


@converts("linalg_vector_norm")
def vector_norm(
    node: Node,
    x: Tensor,
    ord: float = 2,
    dim: Axes = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    """Return `(sum |x|^ord)^(1 / ord)` along axes, in f32 where the result has fewer bits."""
    del dtype
    wide = dtypes.f32 if node.dtype.bits < dtypes.f32.bits else node.dtype
    apart, axes = F.abs(converted(converted(x, node.dtype), wide)), axes_of(dim, x)
    if ord == 0:
        apart = F.cast(F.not_equal(apart, 0.0), wide)
    if not axes:
        return converted(apart, node.dtype)
    if math.isinf(ord):
        made = (F.max if ord > 0 else F.min)(apart, axes, keepdim)
    elif ord in (0, 1):
        made = F.sum(apart, axes, keepdim)
    elif ord == 2:
        made = F.sqrt(F.sum(apart * apart, axes, keepdim))
    else:
        made = F.pow(F.sum(F.pow(apart, float(ord)), axes, keepdim), 1 / float(ord))
    return converted(made, node.dtype)


@converts("dist")
def distance(node: Node, x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """Return the p-norm of the difference."""
    return vector_norm(node, converted(x, node.dtype) - converted(y, node.dtype), p)


@converts.each(
    {
        **dict.fromkeys(("amax", "max.default"), (F.max, F.any)),
        **dict.fromkeys(("amin", "min.default"), (F.min, F.all)),
    }
)
def extreme(
    functions: tuple[Reduction, Reduction], x: Tensor, dim: Axes = None, keepdim: bool = False
) -> Tensor:
    """Return the largest or the smallest element."""
    of_numbers, of_truths = functions
    function = of_truths if x.dtype.is_bool else of_numbers
    return function(x, axes_of(dim, x), keepdim) if x.rank else x


@converts.each({"max.dim": F.argmax, "min.dim": F.argmin})
def extreme_with_index(
    function: Reduction, x: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the largest or smallest elements along an axis, and their indices."""
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    axis = axis_of(dim, x)
    found = function(x, axis, True)
    values = F.gather(x, found, axis)
    if keepdim:
        return values, found
    return F.squeeze(values, axis), F.squeeze(found, axis)


@converts.each({"argmax": F.argmax, "argmin": F.argmin})
def argmax_or_argmin(
    function: Reduction, x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """Return the index of the largest or smallest element (argmax, argmin)."""
    if x.rank == 0:
        return F.zeros([], dtypes.si64)
    return function(x, None if dim is None else axis_of(dim, x), keepdim)


@converts.each({"any": F.any, "all": F.all})
def quantified(
    function: Reduction, node: Node, x: Tensor, dim: Axes = None, keepdim: bool = False
) -> Tensor:
    """Return whether any, or all, elements differ from 0."""
    made = truth(x)
    if x.rank:
        axes = [] if dim == [] else axes_of(dim, x)
        made = function(made, axes, keepdim) if axes else made
    return converted(made, node.dtype)


@converts("var")
def variance(
    node: Node,
    x: Tensor,
    dim: Axes | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Number | None = None,
) -> Tensor:
    """Return the variance along axes."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if str(node.source.target).endswith("correction"):
        keepdim = keepdim or bool(node.source.kwargs.get("keepdim", False))
    given = (1 if unbiased else 0) if correction is None else _whole(correction)
    if x.rank == 0:
        node.refuse("of a scalar")
    axes = axes_of(dim, x)
    if isinstance(given, int):
        return F.variance(x, axes, given, keepdim)
    count = math.prod(x.shape[axis] for axis in axes)
    if not is_number(count):
        node.refuse("has a fractional correction of a free size")
    whole = F.variance(x, axes, 0, keepdim)
    return whole * (count / max(count - given, 0)) if count > given else whole * math.nan


def _whole(correction: Number) -> Number:
    return int(correction) if float(correction).is_integer() else correction


@converts("var_mean.correction")
def variance_and_mean(
    node: Node,
    x: Tensor,
    dim: Axes = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the variance along axes, and the mean."""
    given = 1 if correction is None else _whole(correction)
    if x.rank and isinstance(given, int):
        return F.variance_and_mean(x, axes_of(dim, x), given, keepdim)
    found = variance(node, x, dim, keepdim=keepdim, correction=correction)
    return found, F.variance_and_mean(x, axes_of(dim, x), 0, keepdim)[1]


@converts.each({"cumsum": F.cumsum, "cumprod": F.cumprod})
def running(
    function: Reduction, node: Node, x: Tensor, dim: int, *, dtype: object = None
) -> Tensor:
    """Return the cumulative sums or products."""
    del dtype
    made = converted(x, node.dtype)
    return made if x.rank == 0 else function(made, axis_of(dim, x))


@converts("logcumsumexp")
def running_log_sum(x: Tensor, dim: int) -> Tensor:
    """Return the logarithms of the cumulative sums of `exp(x)`, by a loop without overflow.

    As in torch, the running sum is f64: beside a large one, small steps are lost in f32.
    """
    if x.rank == 0:
        return x
    axis = axis_of(dim, x)
    rows = F.transpose(x, [axis, *(i for i in range(x.rank) if i != axis)])

    def step(before: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        wide = F.cast(row, dtypes.f64)
        top, low = F.maximum(before, wide), F.minimum(before, wide)
        # Of two equal infinities the difference is NaN.
        gap = F.where(F.equal(top, low), 0.0, low - top)
        total = F.where(F.is_inf(top), top, top + F.log1p(F.exp(gap)))
        return total, F.cast(total, x.dtype)

    start = F.full(rows.shape[1:], -math.inf, dtypes.f64)
    _, (found,) = primitives.scan(step, [start], [rows])
    return F.transpose(found, [*range(1, axis + 1), 0, *range(axis + 1, x.rank)])


@converts.each({"cummax": F.cummax, "cummin": F.cummin})
def running_extreme(function: Reduction, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest or smallest elements so far, and the indices of the last such ones."""
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    axis, numbers = axis_of(dim, x), F.cast(x, dtypes.ui8) if x.dtype.is_bool else x
    found = function(numbers, axis)
    # In torch, each NaN counts as a new extreme.
    is_new = F.logical_or(F.equal(numbers, found), F.not_equal(numbers, numbers))
    indices = F.where(is_new, primitives.iota(x.shape, axis, dtypes.si64), 0)
    return truth(found) if x.dtype.is_bool else found, F.cummax(indices, axis)


@converts("kthvalue")
def kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the k-th smallest elements along an axis, and their indices."""
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    axis = axis_of(dim, x)
    found = [F.slice_axis(each, axis, k - 1, 1) for each in ordered(x, axis)]
    values, indices = found if keepdim else [F.squeeze(each, axis) for each in found]
    return values, indices


@converts.each({"median": False, "nanmedian": True})
def median(
    skips: bool, x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Return medians along an axis and their indices, or the median of all elements.

    Of two middle elements it is the lower one. NaN wins, or is left out (`skips`).
    """
    if dim is None:
        return median(skips, F.reshape(x, [math.prod(x.shape)]), 0)[0]
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    axis = axis_of(dim, x)
    values, indices = ordered(x, axis)  # NaN after all numbers
    count = size_tensor(x.shape[axis])
    known = (
        count - F.sum(F.cast(F.is_nan(x), dtypes.si64), axis, True) if x.dtype.is_float else count
    )
    middle = F.floor_divide(F.maximum((known if skips else count) - 1, 0), 2)
    if not skips:
        middle = F.where(F.less(known, count), known, middle)
    spots = F.broadcast_to(middle, [1 if i == axis else size for i, size in enumerate(x.shape)])
    found = F.gather(values, spots, axis), F.gather(indices, spots, axis)
    return found if keepdim else (F.squeeze(found[0], axis), F.squeeze(found[1], axis))


@converts("mode")
def most_frequent(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the most frequent elements along an axis, the least of several, and the last indices.

    No NaN equals another one, and all come after the numbers; torch sorts them anywhere.
    """
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    axis = axis_of(dim, x)
    values, indices = ordered(x, axis)
    place = primitives.iota(x.shape, axis, dtypes.si64)
    is_new = F.logical_or(F.equal(place, 0), F.not_equal(values, F.roll(values, 1, axis)))
    # A run of equal elements is longest at its end, whose length is a distance from its start.
    length = place - F.cummax(F.where(is_new, place, 0), axis)
    end = F.argmax(length, axis, True)
    found = F.gather(values, end, axis), F.gather(indices, end, axis)
    return found if keepdim else (F.squeeze(found[0], axis), F.squeeze(found[1], axis))


@converts("logsumexp")
def log_sum_exp(node: Node, x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """Return `log(sum(exp(x)))`."""
    made = converted(x, node.dtype)
    return made if x.rank == 0 else F.logsumexp(made, axes_of(dim, x), keepdim)


# Sorting, and the k largest elements.


@converts("sort")
def ordered(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    **named: object,
) -> tuple[Tensor, Tensor]:
    """Return sorted elements along an axis, and their indices; the sort is stable."""
    del stable
    axis = axis_of(int(str(named.get("dim", dim))), x)
    down = bool(named.get("descending", descending))
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    indices = primitives.iota(x.shape, axis, dtypes.si64)
    keys = F.cast(x, dtypes.ui8) if x.dtype.is_bool else x
    values, found = primitives.sort([keys, indices], axis, down, True)
    return (F.cast(values, x.dtype) if x.dtype.is_bool else values), found


@converts("topk")
def top_k(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis, and their indices."""
    del sorted
    if x.rank == 0:
        return x, F.zeros([], dtypes.si64)
    values, indices = F.top_k(x, k, axis_of(dim, x), largest)
    return values, F.cast(indices, dtypes.si64)


# Histograms.


@converts("histc")
def histogram(node: Node, x: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """Return the number of elements in each bin; the last bin includes its upper edge.

    Equal edges mean the least and the greatest element. Elements near an edge land in the same bin
    as in torch, since bins are rounded in the same order.
    """
    if not all(is_number(size) for size in x.shape):
        node.refuse("has a free size")
    wide = dtypes.f32 if x.dtype.bits < dtypes.f32.bits else x.dtype
    flat = converted(F.reshape(x, (-1,)), wide)
    low, high = scalar(min, wide), scalar(max, wide)
    if min == max and flat.shape[0]:
        low, high = F.min(flat), F.max(flat)
    equal = F.equal(low, high)
    low, high = F.where(equal, low - 1.0, low), F.where(equal, high + 1.0, high)
    inside = F.logical_and(F.greater_equal(flat, low), F.less_equal(flat, high))
    slots = F.where(inside, (flat - low) * float(bins) / (high - low), 0.0)
    found = F.minimum(F.cast(slots, dtypes.si64), scalar(bins - 1, dtypes.si64))
    counts = F.scatter(F.zeros([bins], dtypes.si64), found, F.cast(inside, dtypes.si64), 0, "add")
    return converted(counts, node.dtype)
