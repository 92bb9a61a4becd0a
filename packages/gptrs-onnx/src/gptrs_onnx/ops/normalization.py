"""Normalization by statistics of the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.node import Known, Node, converts, numbers


@converts("BatchNormalization")
def batch_normalization(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> tuple[Tensor, ...]:
    """Return channels shifted and scaled: by given statistics, or in training mode by their own."""
    epsilon = node.number("epsilon", 1e-5)
    if not node.flag("training_mode"):
        return (_by_statistics(x, scale, bias, mean, variance, epsilon),)
    axes = [axis for axis in range(x.rank) if axis != 1]
    wide = F.cast(x, dtypes.f32) if x.dtype.bits < 32 else x
    found = F.variance_and_mean(wide, axes)
    own_variance, own_mean = (F.cast(each, mean.dtype) for each in found)
    result = F.cast(_by_channel(_standardized(wide, axes, epsilon), scale, bias), x.dtype)
    momentum = node.number("momentum", 0.9)
    running = [
        given * momentum + own * (1.0 - momentum)
        for given, own in ((mean, own_mean), (variance, own_variance))
    ]
    return (result, *running)


def _by_statistics(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Tensor:
    if {x.dtype, scale.dtype, bias.dtype, mean.dtype, variance.dtype} == {x.dtype}:
        return F.batch_norm(x, mean, variance, scale, bias, epsilon, axis=1)
    wide = [F.cast(each, dtypes.f32) for each in (x, mean, variance, scale, bias)]
    return F.cast(F.batch_norm(*wide, epsilon=epsilon, axis=1), x.dtype)


@converts("InstanceNormalization")
def instance_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return each channel of each example with mean 0 and variance 1, shifted and scaled."""
    normal = _standardized(x, range(2, x.rank), node.number("epsilon", 1e-5))
    return _by_channel(normal, scale, bias)


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
def mean_variance_normalization(node: Node, x: Tensor) -> Tensor:
    """Return x less its mean over axes, over its deviation there plus 1e-9."""
    axes = [axis % x.rank for axis in node.integers("axes", [0, 2, 3])]
    variance, mean = F.variance_and_mean(x, axes, keepdims=True)
    apart = x - mean
    return (apart - F.mean(apart, axes, keepdims=True)) / (F.sqrt(variance) + 1e-9)


@converts("LayerNormalization")
def layer_normalization(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the elements from an axis on with mean 0 and variance 1, shifted and scaled."""
    axis = node.integer("axis", -1) % x.rank
    epsilon = node.number("epsilon", 1e-5)
    stash = dtype_of(node.integer("stash_type", int(ir.DataType.FLOAT)), f"{node}")
    axes = list(range(axis, x.rank))
    if not (node.wants(1) or node.wants(2)) and scale.shape == x.shape[axis:]:
        return (F.layer_norm(x, scale, bias, epsilon, axes),)
    wide = F.cast(x, stash)
    variance, mean = F.variance_and_mean(wide, axes, keepdims=True)
    normal = F.cast(F.layer_norm(wide, epsilon=epsilon, axes=axes), x.dtype) * scale
    made = normal if bias is None else normal + bias
    return (made, mean, F.rsqrt(variance + epsilon))


@converts("RMSNormalization")
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    """Return the elements from an axis on divided by their root mean square, scaled."""
    axis = node.integer("axis", -1) % x.rank
    epsilon = node.number("epsilon", 1e-5)
    if axis == x.rank - 1 and scale.shape == x.shape[-1:] and scale.dtype == x.dtype:
        return F.rms_norm(x, scale, epsilon)
    stash = dtype_of(node.integer("stash_type", int(ir.DataType.FLOAT)), f"{node}")
    wide = F.cast(x, stash)
    mean = F.mean(wide * wide, list(range(axis, x.rank)), keepdims=True)
    return F.cast(wide * F.rsqrt(mean + epsilon), scale.dtype) * scale


@converts("GroupNormalization")
def group_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return groups of channels with mean 0 and variance 1, each channel shifted and scaled."""
    groups, epsilon = node.integer("num_groups"), node.number("epsilon", 1e-5)
    batch, channels, *spatial = x.shape
    flat = F.reshape(x, [batch, groups, (channels // groups) * math.prod(spatial)])
    normal = F.reshape(_standardized(flat, [2], epsilon), x.shape)
    if node.version < 21:  # a scale for each group
        scale, bias = (F.repeat_interleave(each, channels // groups, 0) for each in (scale, bias))
    return _by_channel(normal, scale, bias)


@converts("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    """Return x divided by its 1- or 2-norm along an axis; zeros stay."""
    axis = node.integer("axis", -1)
    if node.integer("p", 2) == 1:
        length = F.sum(F.abs(x), axis, keepdims=True)
    else:
        length = F.sqrt(F.sum(x * x, axis, keepdims=True))
    zero = F.zeros([], x.dtype)
    return F.where(F.equal(length, zero), zero, x / length)


@converts("LRN")
def local_response_normalization(node: Node, x: Tensor) -> Tensor:
    """Return x divided by a power of the squares in channels nearby (Krizhevsky et al. 2012)."""
    size, bias = node.integer("size"), node.number("bias", 1.0)
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    low = (size - 1) // 2
    sides = [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.rank - 2)]
    squares = F.pad(x * x, sides)
    count = x.shape[1]
    total = F.slice_axis(squares, 1, 0, count)
    for start in range(1, size):
        total = total + F.slice_axis(squares, 1, start, count)
    return x / F.pow(bias + (alpha / size) * total, beta)


# Reductions along axes.


_REDUCE: dict[str, Callable[[Tensor, Sequence[int], bool], Tensor]] = {
    "ReduceSum": F.sum,
    "ReduceProd": F.prod,
    "ReduceMax": F.max,
    "ReduceMin": F.min,
    "ReduceMean": lambda x, axes, keep: _mean(x, axes, keep),
    "ReduceL1": lambda x, axes, keep: F.sum(F.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: _length(x, axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: F.sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: F.log(F.sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: F.logsumexp(x, axes, keep),
}


@converts(*_REDUCE)
def reduced(node: Node, x: Tensor, axes: Known | None = None) -> Tensor:
    """Reduce along `axes`, by default all, keeping them with size 1 unless told otherwise."""
    named = numbers(axes) if axes is not None else node.integers("axes", [])
    if not named and node.flag("noop_with_empty_axes"):
        if node.op_type in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean"):
            return x
        return _REDUCE[node.op_type](F.expand_dims(x, 0), [0], False)
    places = named or range(x.rank)
    keep = node.flag("keepdims", True)
    if x.dtype.is_bool:
        reduce = F.any if node.op_type == "ReduceMax" else F.all
        return reduce(x, list(places), keep)
    return _REDUCE[node.op_type](x, list(places), keep)


def _mean(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    if x.dtype.is_float:
        return F.mean(x, axes, keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return F.div(F.sum(x, axes, keep), count)


def _length(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return F.sqrt(F.sum(x * x, axes, keep))


@converts("ArgMax", "ArgMin")
def argmax_or_argmin(node: Node, x: Tensor) -> Tensor:
    """Return the place of the first, or last, largest or smallest element along an axis."""
    function = F.argmax if node.op_type == "ArgMax" else F.argmin
    axis, keep = node.integer("axis", 0) % x.rank, node.flag("keepdims", True)
    if not node.flag("select_last_index"):
        return function(x, axis, keep)
    return (x.shape[axis] - 1) - function(F.flip(x, axis), axis, keep)


@converts("CumSum", "CumProd")
def cumulative(node: Node, x: Tensor, axis: Known) -> Tensor:
    """Return sums or products of what comes before along an axis."""
    function = F.cumsum if node.op_type == "CumSum" else F.cumprod
    along = numbers(axis)[0]
    return function(x, along, reverse=node.flag("reverse"), exclusive=node.flag("exclusive"))
