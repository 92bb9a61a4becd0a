"""Normalization layers, kept whole: backends have kernels for them."""

from __future__ import annotations

from typing import cast

import torch

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
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
    """Return x normalized by statistics that are known, and two empty tensors."""
    del momentum
    made = F.batch_norm(_widened(x, mean), mean, variance, weight, bias, epsilon, 1)
    empty = F.zeros([0], x.dtype)
    return _typed(node, made, empty, empty)


def _widened(x: Tensor, *weights: Tensor | None) -> Tensor:
    """Return x in the type of its weights: under autocast they are wider, and torch sums in it."""
    types = [each.dtype for each in weights if each is not None]
    return converted(x, types[0]) if types else x


def _typed(node: Node, *made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return results in the types that torch gives them."""
    held = cast("list[torch.Tensor]", node.source.meta["val"])
    first, second, third = (
        converted(each, node.dtype_at(like.dtype)) for each, like in zip(made, held, strict=True)
    )
    return first, second, third
