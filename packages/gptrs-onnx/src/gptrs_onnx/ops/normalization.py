"""Normalization by statistics of the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Node, Sizes, converts


@converts("BatchNormalization")
def batch_normalization(
    node: Node,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: bool = False,
) -> tuple[Tensor, ...]:
    """Return channels shifted and scaled: by given statistics, or in training mode by their own.

    Before operator set 14, training mode is that more outputs than one are listed.
    """
    is_older = node.version < 14
    if not (node.outputs > 1 if is_older else training_mode):
        return (_by_statistics(x, scale, bias, mean, variance, epsilon),)
    axes = [axis for axis in range(x.rank) if axis != 1]
    # Sums of squares of f16 overflow at 65,504.
    wide = F.cast(x, dtypes.f32) if x.dtype.bits < 32 else x
    found = F.variance_and_mean(wide, axes)
    own_variance, own_mean = (F.cast(each, mean.dtype) for each in found)
    result = F.cast(_by_channel(_standardized(wide, axes, epsilon), scale, bias), x.dtype)
    running = [
        given * momentum + own * (1.0 - momentum)
        for given, own in ((mean, own_mean), (variance, own_variance))
    ]
    # What ONNX Runtime saves is the inverse deviation; the old standard does not say.
    saved = (own_mean, F.rsqrt(own_variance + epsilon)) if is_older else ()
    return (result, *running, *saved)


def _by_statistics(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    if scale.rank > 1:  # not `spatial`, as operator sets 7 and 8 allow: an element has its own
        centered = (x - mean) / F.sqrt(variance + epsilon)
        return centered * scale + bias
    if {x.dtype, scale.dtype, bias.dtype, mean.dtype, variance.dtype} == {x.dtype}:
        return F.batch_norm(x, mean, variance, scale, bias, epsilon, axis=1)
    wide = [F.cast(each, dtypes.f32) for each in (x, mean, variance, scale, bias)]
    return F.cast(F.batch_norm(*wide, epsilon=epsilon, axis=1), x.dtype)


@converts("InstanceNormalization")
def instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Return each channel of each example with mean 0 and variance 1, shifted and scaled."""
    return _by_channel(_standardized(x, range(2, x.rank), epsilon), scale, bias)


def _standardized(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """Return x less its mean over `axes`, over its deviation there."""
    order = [*(axis for axis in range(x.rank) if axis not in axes), *axes]
    last = range(x.rank - len(axes), x.rank)
    made = F.layer_norm(F.transpose(x, order), epsilon=epsilon, axes=last)
    return F.transpose(made, [order.index(axis) for axis in range(x.rank)])


def _by_channel(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return x times a scale and plus a bias of each channel, which are on axis 1."""
    shape = [-1, *[1] * (x.rank - 2)]
    scale, bias = (F.reshape(F.cast(each, x.dtype), shape) for each in (scale, bias))
    return x * scale + bias


@converts("MeanVarianceNormalization")
def mean_variance_normalization(
    node: Node, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)
) -> Tensor:
    """Return x less its mean over axes, over its deviation there plus 1e-9."""
    if node.version < 9 and node.flag("across_channels"):
        axes = range(x.rank)
    axes = [axis % x.rank for axis in axes]
    variance, mean = F.variance_and_mean(x, axes, keepdims=True)
    apart = x - mean
    if node.version < 9 and not node.flag("normalize_variance", True):
        return apart
    # Centred twice: a mean far from 0 is rounded, and dividing by a small deviation would magnify
    # what it leaves.
    return (apart - F.mean(apart, axes, keepdims=True)) / (F.sqrt(variance) + 1e-9)


@converts("LayerNormalization")
def layer_normalization(
    node: Node,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: DType = dtypes.f32,
) -> tuple[Tensor, ...]:
    """Return the elements from an axis on with mean 0 and variance 1, shifted and scaled."""
    axes = list(range(axis % x.rank, x.rank))
    # One call that backends have a kernel for; mean and deviation are outputs in training graphs
    # only.
    if not (node.wants(1) or node.wants(2)) and scale.shape == x.shape[axes[0] :]:
        return (F.layer_norm(x, scale, bias, epsilon, axes),)
    wide = F.cast(x, stash_type)
    variance, mean = F.variance_and_mean(wide, axes, keepdims=True)
    normal = F.cast(F.layer_norm(wide, epsilon=epsilon, axes=axes), x.dtype) * scale
    made = normal if bias is None else normal + bias
    return (made, mean, F.rsqrt(variance + epsilon))


@converts("RMSNormalization")
def rms_normalization(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: DType = dtypes.f32,
) -> Tensor:
    """Return the elements from an axis on divided by their root mean square, scaled."""
    axes = list(range(axis % x.rank, x.rank))
    if len(axes) == 1 and scale.shape == x.shape[-1:] and scale.dtype == x.dtype:
        return F.rms_norm(x, scale, epsilon)
    wide = F.cast(x, stash_type)
    mean = F.mean(wide * wide, axes, keepdims=True)
    return F.cast(wide * F.rsqrt(mean + epsilon), scale.dtype) * scale


@converts("GroupNormalization")
def group_normalization(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """Return groups of channels with mean 0 and variance 1, each channel shifted and scaled."""
    groups = num_groups
    batch, channels, *spatial = x.shape
    flat = F.reshape(x, [batch, groups, (channels // groups) * math.prod(spatial)])
    normal = F.reshape(_standardized(flat, [2], epsilon), x.shape)
    if node.version < 21:  # a scale for each group
        scale, bias = (F.repeat_interleave(each, channels // groups, 0) for each in (scale, bias))
    return _by_channel(normal, scale, bias)


@converts("com.microsoft.GroupNorm")
def group_norm(
    node: Node,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    groups: int,
    epsilon: float = 1e-5,
    activation: int = 0,
    channels_last: bool = True,
) -> Tensor:
    """Return groups of channels normalized, scaled and shifted, then SiLU if asked for."""
    if activation not in (0, 1):
        node.refuse(f"has the activation {activation}")
    last = x if channels_last else F.transpose(x, [0, *range(2, x.rank), 1])
    wide = F.group_norm(F.cast(last, scale.dtype), groups, scale, shift, epsilon)
    made = F.cast(F.silu(wide) if activation else wide, x.dtype)
    return made if channels_last else F.transpose(made, [0, x.rank - 1, *range(1, x.rank - 1)])


@converts("com.microsoft.SkipGroupNorm")
def skip_group_norm(
    node: Node, x: Tensor, scale: Tensor, shift: Tensor, skip: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `GroupNorm` of x plus `skip` plus a bias, and that sum."""
    last = node.flag("channels_last", True)
    if skip.rank == 2:  # a number for each channel of each row
        skip = F.reshape(skip, [skip.shape[0], 1, 1, -1] if last else [*skip.shape, 1, 1])
    total = x + skip
    if bias is not None:
        total = total + (bias if last else F.reshape(bias, [-1, 1, 1]))
    made = group_norm(
        node,
        total,
        scale,
        shift,
        groups=node.integer("groups"),
        epsilon=node.number("epsilon", 1e-5),
        activation=node.integer("activation", 0),
        channels_last=last,
    )
    return made, total


@converts("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Return x divided by its 1- or 2-norm along an axis; zeros stay."""
    if p == 1:
        length = F.sum(F.abs(x), axis, keepdims=True)
    else:
        length = F.sqrt(F.sum(x * x, axis, keepdims=True))
    zero = F.zeros([], x.dtype)
    return F.where(F.equal(length, zero), zero, x / length)


@converts("LRN")
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    """Return x divided by a power of the squares in channels nearby (Krizhevsky et al. 2012)."""
    low = (size - 1) // 2
    sides = [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.rank - 2)]
    squares = F.pad(x * x, sides)
    count = x.shape[1]
    total = F.slice_axis(squares, 1, 0, count)
    for start in range(1, size):
        total = total + F.slice_axis(squares, 1, start, count)
    return x / F.pow(bias + (alpha / size) * total, beta)


# Reductions along axes.


Reduction = Callable[..., Tensor]


def _mean(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    if x.dtype.is_float:
        return F.mean(x, axes, keep)
    return F.div(F.sum(x, axes, keep), math.prod(x.shape[axis] for axis in axes))


def _absolute_sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.sum(F.abs(x), axes, keep)


def _sum_of_squares(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.sum(x * x, axes, keep)


def _length(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.sqrt(_sum_of_squares(x, axes, keep))


def _log_sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.log(F.sum(x, axes, keep))


@converts.each(
    {
        "ReduceSum": F.sum,
        "ReduceProd": F.prod,
        "ReduceMax": F.max,
        "ReduceMin": F.min,
        "ReduceMean": _mean,
        "ReduceL1": _absolute_sum,
        "ReduceL2": _length,
        "ReduceSumSquare": _sum_of_squares,
        "ReduceLogSum": _log_sum,
        "ReduceLogSumExp": F.logsumexp,
    }
)
def reduced(
    function: Reduction,
    x: Tensor,
    given: Sizes | None = None,
    *,
    axes: Sequence[int] = (),
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
) -> Tensor:
    """Reduce along `axes`, by default all; by default they remain with size 1.

    Roots and logarithms of integers are computed in f64 and cut off, as in the reference of ONNX.
    """
    if x.dtype.is_integer and function in (_length, _log_sum, F.logsumexp):
        settings = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
        found = reduced(function, F.cast(x, dtypes.f64), given, axes=axes, **settings)
        return F.cast(found, x.dtype)
    named = axes if given is None else given
    if not named and noop_with_empty_axes:
        if function in (F.sum, F.prod, F.max, F.min, _mean):
            return x
        # Without axes nothing is summed, but the rest (a square, a magnitude, a logarithm) still
        # applies to each element.
        return function(F.expand_dims(x, 0), [0], False)
    if x.dtype.is_bool:
        function = F.any if function is F.max else F.all
    return function(x, list(named or range(x.rank)), keepdims)


@converts.each({"ArgMax": F.argmax, "ArgMin": F.argmin})
def argmax_or_argmin(
    function: Reduction,
    x: Tensor,
    *,
    axis: int = 0,
    keepdims: bool = True,
    select_last_index: bool = False,
) -> Tensor:
    """Return the index of the first, or last, largest or smallest element along an axis."""
    axis %= x.rank
    if not select_last_index:
        return function(x, axis, keepdims)
    # The first of the reversed order is the last one, NaN included.
    return (x.shape[axis] - 1) - function(F.flip(x, axis), axis, keepdims)


@converts.each({"CumSum": F.cumsum, "CumProd": F.cumprod})
def cumulative(
    function: Reduction, x: Tensor, axis: Sizes, *, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Return cumulative sums or products along an axis."""
    return function(x, axis[0], reverse=reverse, exclusive=exclusive)
