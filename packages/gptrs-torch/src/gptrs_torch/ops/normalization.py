"""Normalization layers, kept whole: backends have kernels for them."""

from __future__ import annotations

from gptrs.api import Tensor
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts


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
    del node
    axes = list(range(x.rank - len(shape), x.rank))
    made = F.layer_norm(x, weight, bias, epsilon, axes)
    mean = F.mean(x, axes, keepdims=True)
    deviation = F.rsqrt(F.variance(x, axes, 0, keepdims=True) + epsilon)
    return made, mean, deviation


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
    del node
    boxes = F.reshape(x, [batch, groups, channels // groups * size])
    mean = F.mean(boxes, [2], keepdims=True)
    deviation = F.rsqrt(F.variance(boxes, [2], 0, keepdims=True) + epsilon)
    if x.rank > 2:
        last = F.transpose(x, [0, *range(2, x.rank), 1])
        made = F.group_norm(last, groups, weight, bias, epsilon)
        made = F.transpose(made, [0, x.rank - 1, *range(1, x.rank - 1)])
    else:
        made = F.group_norm(x, groups, weight, bias, epsilon)
    return made, F.squeeze(mean, 2), F.squeeze(deviation, 2)


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
    del node, momentum
    made = F.batch_norm(x, mean, variance, weight, bias, epsilon, 1)
    empty = F.zeros([0], x.dtype)
    return made, empty, empty
