"""Activation functions, kept whole so that backends know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.registry import converts
from gptrs_torch.values import axis_of, converted, scalar

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "hardswish": F.hard_swish,
    "hardsigmoid": F.hard_sigmoid,
}


@converts(*_PLAIN)
def plain(node: Node, x: Tensor) -> Tensor:
    """Convert an activation without settings."""
    if x.dtype.is_integer:
        return F.maximum(x, scalar(0, x.dtype))
    return _PLAIN[name_of(node)](x)


@converts("gelu")
def gelu(node: Node, x: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Return `x * P(X <= x)` for a normal X, exactly or by tanh."""
    del node
    return F.gelu(x, approximate)


@converts("elu")
def elu(
    node: Node, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    """Return `scale * x` above 0, `scale * alpha * (exp(input_scale * x) - 1)` below."""
    del node
    if scale == 1 and input_scale == 1:
        return F.elu(x, float(alpha))
    below = scalar(alpha * scale, x.dtype) * F.expm1(x * scalar(input_scale, x.dtype))
    return F.where(x > 0.0, x * scalar(scale, x.dtype), below)


@converts("leaky_relu")
def leaky_relu(node: Node, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x above 0, `negative_slope * x` below."""
    del node
    return F.leaky_relu(x, float(negative_slope))


@converts("_softmax", "softmax.int", "_safe_softmax", "_log_softmax", "log_softmax.int")
def softmax(node: Node, x: Tensor, dim: int, _: object = None, **named: object) -> Tensor:
    """Return the softmax along an axis, or its logarithm."""
    del named
    name = name_of(node)
    function = F.safe_softmax if "safe" in name else F.log_softmax if "log" in name else F.softmax
    made = converted(x, node.dtype)
    if x.rank == 0:
        return F.reshape(function(F.reshape(made, [1]), 0), [])
    return function(made, axis_of(dim, x))
