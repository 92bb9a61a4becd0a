"""Normalization layers, kept whole, since backends have kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from gptrs.api.models import Tensor
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
    return any(user.args[1:] != (0,) and user.users for user in node.source.users)


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
def adaptive_average_pool(x: Tensor, output_size: list[int] | int) -> Tensor:
    """Return the means of a grid of bins."""
    axes, wanted = _grid(x, output_size)
    if wanted == [1] * len(axes):
        return F.mean(x, axes, keepdims=True)
    return F.adaptive_average_pool(x, wanted, axes)


@converts("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(node: Node, x: Tensor, output_size: list[int]) -> tuple[Tensor, Tensor]:
    """Return the largest elements of a grid of bins, and their indices in the plane."""
    axes, wanted = _grid(x, output_size)
    if not _reads_second(node):
        best = F.adaptive_max_pool(x, wanted, axes)
        return best, F.zeros(best.shape, dtypes.si64)
    sizes = [x.shape[axis] for axis in axes]
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        node.refuse(f"returns indices of bins of unequal sizes, {sizes} in {wanted}")
    kernel = [size // parts for size, parts in zip(sizes, wanted, strict=True)]
    return F.max_pool_with_indices(x, kernel, axes=axes)


def _grid(x: Tensor, output_size: list[int] | int) -> tuple[list[int], list[int]]:
    """Return the pooled axes and the number of bins on each."""
    wanted = [output_size] if isinstance(output_size, int) else list(output_size)
    return list(range(x.rank - len(wanted), x.rank)), wanted
