"""Activation functions; where ONNX has a parameter, its default is that of the standard."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import scalar


@converts("Relu")
def relu(node: Node, x: Tensor) -> Tensor:
    """Return `max(x, 0)`."""
    del node
    return F.maximum(x, scalar(0, x.dtype)) if x.dtype.is_integer else F.relu(x)


@converts("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    """Return x, times `alpha` below 0."""
    return F.leaky_relu(x, node.number("alpha", 0.01))


@converts("PRelu")
def parametric_relu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Return x, times a slope of its own below 0."""
    del node
    return F.where(x < scalar(0, x.dtype), x * slope, x)


@converts("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    """Return x above `alpha`, 0 elsewhere."""
    return F.where(x > node.number("alpha", 1.0), x, 0.0)


@converts("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    """Return x, `alpha * (e^x - 1)` below 0."""
    return F.elu(x, node.number("alpha", 1.0))


@converts("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    """Return `gamma * elu(x, alpha)` (Klambauer et al. 2017)."""
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    return gamma * F.where(x > 0.0, x, alpha * F.expm1(x))


@converts("Celu")
def celu(node: Node, x: Tensor) -> Tensor:
    """Return `max(0, x) + min(0, alpha * (e^(x / alpha) - 1))`."""
    alpha = node.number("alpha", 1.0)
    zero = scalar(0, x.dtype)
    return F.maximum(x, zero) + F.minimum(alpha * F.expm1(x / alpha), zero)


@converts("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    """Return x times the normal distribution up to x, or its approximation by tanh."""
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        node.refuse(f"has the approximation {approximate!a}")
    return F.gelu(x, approximate)


@converts("Swish")
def swish(node: Node, x: Tensor) -> Tensor:
    """Return `x * sigmoid(alpha * x)`."""
    alpha = node.number("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * F.sigmoid(alpha * x)


@converts("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """Return `clip(alpha * x + beta, 0, 1)`."""
    line = x * node.number("alpha", 0.2) + node.number("beta", 0.5)
    return F.clamp(line, 0.0, 1.0)


@converts("HardSwish")
def hard_swish(node: Node, x: Tensor) -> Tensor:
    """Return `x * clip(x / 6 + 1 / 2, 0, 1)`."""
    del node
    return F.hard_swish(x)


@converts("Mish")
def mish(node: Node, x: Tensor) -> Tensor:
    """Return `x * tanh(log(1 + e^x))`."""
    del node
    return x * F.tanh(F.softplus(x))


@converts("Softplus")
def softplus(node: Node, x: Tensor) -> Tensor:
    """Return `log(1 + e^x)`."""
    del node
    return F.softplus(x)


@converts("Softsign")
def softsign(node: Node, x: Tensor) -> Tensor:
    """Return `x / (1 + |x|)`."""
    del node
    return x / (1.0 + F.abs(x))


@converts("Shrink")
def shrink(node: Node, x: Tensor) -> Tensor:
    """Return x nearer to 0 by `bias`, and 0 within `lambd` of it."""
    bias, lambd = node.number("bias", 0.0), node.number("lambd", 0.5)
    if x.dtype.is_integer:
        node.refuse("shrinks integers")
    return F.where(x < -lambd, x + bias, F.where(x > lambd, x - bias, 0.0))


@converts("Softmax", "LogSoftmax")
def softmax(node: Node, x: Tensor) -> Tensor:
    """Return the shares of the exponentials along an axis, before opset 13 along all from it on."""
    function = F.softmax if node.op_type == "Softmax" else F.log_softmax
    if node.version >= 13:
        return function(x, node.integer("axis", -1))
    axis = node.integer("axis", 1) % x.rank if x.rank else 0
    flat = F.reshape(x, [*x.shape[:axis], -1])
    return F.reshape(function(flat, -1), x.shape)


@converts("Hardmax")
def hardmax(node: Node, x: Tensor) -> Tensor:
    """Return 1 for the first largest element along an axis, 0 for others."""
    axis = node.integer("axis", -1 if node.version >= 13 else 1) % x.rank
    flat = x if node.version >= 13 else F.reshape(x, [*x.shape[:axis], -1])
    best = F.argmax(flat, axis, keepdims=True)
    places = F.reshape(
        F.arange(flat.shape[axis]), [-1 if i == axis else 1 for i in range(flat.rank)]
    )
    return F.reshape(F.cast(F.equal(best, places), x.dtype), x.shape)
