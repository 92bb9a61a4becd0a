"""Normalization layers, kept whole, since backends have kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import converted


@converts("native_layer_norm")
def layer_norm(
    node: Node,
    x: Tensor,
    shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalized over its last axes, their means, and the reciprocals of deviations."""
    wide = _widened(x, weight, bias)
    axes = list(range(x.rank - len(shape), x.rank))
    made = F.layer_norm(wide, weight, bias, epsilon, axes)
    variance, mean = F.variance_and_mean(wide, axes, keepdims=True)
    deviation = F.rsqrt(variance + epsilon)
    return _typed(node, made, mean, deviation)


@converts("native_group_norm")
def group_norm(
    node: Node,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalized over groups of channels, with their means and 1 / deviations."""
    x = _widened(x, weight, bias)
    boxes = F.reshape(x, [batch, groups, channels // groups * size])
    variance, mean = F.variance_and_mean(boxes, 2)
    deviation = F.rsqrt(variance + epsilon)
    if x.rank > 2:
        last = F.transpose(x, [0, *range(2, x.rank), 1])
        made = F.group_norm(last, groups, weight, bias, epsilon)
        made = F.transpose(made, [0, x.rank - 1, *range(1, x.rank - 1)])
    else:
        made = F.group_norm(x, groups, weight, bias, epsilon)
    return _typed(node, made, mean, deviation)


@converts("_native_batch_norm_legit_no_training")
def batch_norm(
    node: Node,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalized by running statistics, and two empty tensors."""
    del momentum
    made = F.batch_norm(_widened(x, mean), mean, variance, weight, bias, epsilon, 1)
    empty = F.zeros([0], x.dtype)
    return _typed(node, made, empty, empty)


def _widened(x: Tensor, *weights: Tensor | None) -> Tensor:
    """Return x in the type of its weights, which autocast leaves wider: torch sums in that type."""
    types = [each.dtype for each in weights if each is not None]
    return converted(x, types[0]) if types else x


def _typed(node: Node, *made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return results in the types of torch."""
    held = cast("list[torch.Tensor]", node.source.meta["val"])
    first, second, third = (
        converted(each, node.dtype_at(like.dtype)) for each, like in zip(made, held, strict=True)
    )
    return first, second, third


# Pooling over any number of spatial axes, channels first.


def _pair(values: Sequence[int] | int, count: int) -> list[int]:
    several = [values] if isinstance(values, int) else list(values)
    return several * count if len(several) == 1 else several


@converts(
    "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool3d", "max_pool1d"
)
def max_pool(
    node: Node,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    dilation: list[int] | int = 1,
    ceil_mode: bool = False,
) -> object:
    """Return the largest element of each window, and its index in the plane."""
    name = node.name
    count = int(name.partition("_pool")[2][0])
    axes = range(x.rank - count, x.rank)
    kernel, steps = _pair(kernel_size, count), _pair(stride or kernel_size, count)
    moves = (kernel, steps, _pair(padding, count), _pair(dilation, count), ceil_mode, axes)
    if name.endswith("indices") and _reads_second(node):
        return F.max_pool_with_indices(x, *moves)
    best = F.max_pool(x, *moves)
    return (best, F.zeros(best.shape, dtypes.si64)) if name.endswith("indices") else best


def _reads_second(node: Node) -> bool:
    """Return whether the indices are read: they cost much more than the values."""
    return any(user.args[1:] != (0,) for user in node.source.users)


@converts("max_pool2d_with_indices_backward")
def max_pool_gradient(
    node: Node, gradient: Tensor, x: Tensor, *rest: object, **named: object
) -> Tensor:
    """Return the gradient of max pooling: each window's goes to the index of its maximum."""
    indices = named.get("indices", rest[-1] if rest else None)
    if not isinstance(indices, Tensor):
        node.refuse("lacks the indices of the largest elements")
    lead = x.shape[: x.rank - 2]
    empty = F.zeros([*lead, x.shape[-2] * x.shape[-1]], x.dtype)
    flat = [*lead, gradient.shape[-2] * gradient.shape[-1]]
    made = F.scatter(empty, F.reshape(indices, flat), F.reshape(gradient, flat), x.rank - 2, "add")
    return F.reshape(made, x.shape)


@converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(
    node: Node,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window; padding counts as zeros unless the node excludes it."""
    count = int(node.name[-2])
    kernel, steps = _pair(kernel_size, count), _pair(stride or kernel_size, count)
    counts = (ceil_mode, count_include_pad, divisor_override or None)
    axes = range(x.rank - count, x.rank)
    return F.average_pool(x, kernel, steps, _pair(padding, count), *counts, axes=axes)


@converts(
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d"
)
def adaptive_average_pool(x: Tensor, output_size: list[int]) -> Tensor:
    """Return means over windows that divide the axes: of one size, or by sums of parts."""
    count = len(_pair(output_size, 1)) if not isinstance(output_size, int) else 1
    wanted = _pair(output_size, count)
    axes = list(range(x.rank - count, x.rank))
    if wanted == [1] * count:
        return F.mean(x, axes, keepdims=True)
    made = x
    for axis, parts in zip(axes, wanted, strict=True):
        size = x.shape[axis]
        if size % parts == 0:
            shape = [*made.shape[:axis], parts, size // parts, *made.shape[axis + 1 :]]
            made = F.mean(F.reshape(made, shape), axis + 1)
            continue
        # Not a product with a matrix of weights: NaN and infinities would spread to all means.
        numbers = np.arange(parts, dtype=np.int64)
        begins = numbers * size // parts
        counts = -(-(numbers + 1) * size // parts) - begins
        steps = np.arange(int(counts.max()), dtype=np.int64)
        indices = primitives.constant(np.minimum(begins[:, None] + steps, size - 1))
        inside = (steps < counts[:, None]).reshape(parts, -1, *[1] * (made.rank - 1 - axis))
        windows = F.where(primitives.constant(inside), F.take(made, indices, axis), 0.0)
        shape = [parts] + [1] * (made.rank - 1 - axis)
        own = F.cast(primitives.constant(counts.reshape(shape)), x.dtype)
        made = F.sum(windows, axis + 1) / own
    return made
