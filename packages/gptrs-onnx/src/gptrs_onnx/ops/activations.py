"""Activation functions; where ONNX has a parameter, its default is that of the standard."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.conversion import converts
from gptrs_onnx.node import Node, scalar


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


def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """Return x above `alpha`, 0 elsewhere."""
    return F.where(x > alpha, x, 0.0)


@converts("ThresholdedRelu")
def _thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return thresholded_relu(x, node.number("alpha", 1.0))


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


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Return `clip(alpha * x + beta, 0, 1)`."""
    return F.clamp(x * alpha + beta, 0.0, 1.0)


@converts("HardSigmoid")
def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return hard_sigmoid(x, node.number("alpha", 0.2), node.number("beta", 0.5))


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


def softsign(x: Tensor) -> Tensor:
    """Return `x / (1 + |x|)`."""
    return x / (1.0 + F.abs(x))


@converts("Softsign")
def _softsign(node: Node, x: Tensor) -> Tensor:
    del node
    return softsign(x)


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


# Steps of optimizers, which the standard has for training.


_DOMAIN = "ai.onnx.preview.training"


def _regularized(node: Node, gradient: Tensor, x: Tensor) -> Tensor:
    return node.number("norm_coefficient", 0.0) * x + gradient


@converts("Adagrad", domain=_DOMAIN)
def adagrad(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return weights and sums of squares after a step (Duchi et al. 2011)."""
    count = len(tensors) // 3
    rate = rate / (1.0 + F.cast(step, rate.dtype) * node.number("decay_factor", 0.0))
    weights: list[Tensor] = []
    sums: list[Tensor] = []
    for x, gradient, total in zip(*_thirds(tensors, count), strict=True):
        slope = _regularized(node, gradient, x)
        squares = total + slope * slope
        weights.append(x - rate * slope / (F.sqrt(squares) + node.number("epsilon", 0.0)))
        sums.append(squares)
    return [*weights, *sums]


@converts("Momentum", domain=_DOMAIN)
def momentum(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return weights and velocities after a step, by plain or Nesterov's momentum."""
    count = len(tensors) // 3
    alpha, beta = node.number("alpha"), node.number("beta")
    later = F.where(step > 0, beta, F.ones([], rate.dtype))
    weights: list[Tensor] = []
    speeds: list[Tensor] = []
    for x, gradient, speed in zip(*_thirds(tensors, count), strict=True):
        slope = _regularized(node, gradient, x)
        following = alpha * speed + later * slope
        nesterov = node.text("mode") == "nesterov"
        weights.append(x - rate * (slope + alpha * following if nesterov else following))
        speeds.append(following)
    return [*weights, *speeds]


@converts("Adam", domain=_DOMAIN)
def adam(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return weights and both moments after a step (Kingma, Ba 2015)."""
    count = len(tensors) // 4
    alpha, beta = node.number("alpha", 0.9), node.number("beta", 0.999)
    number = F.cast(step, rate.dtype)
    scale = F.sqrt(1.0 - F.pow(beta, number)) / (1.0 - F.pow(alpha, number))
    adjusted = F.where(step > 0, rate * scale, rate)
    made: list[list[Tensor]] = [[], [], []]
    groups = [tensors[i * count : (i + 1) * count] for i in range(4)]
    for x, gradient, first, second in zip(*groups, strict=True):
        slope = _regularized(node, gradient, x)
        mean = alpha * first + (1.0 - alpha) * slope
        square = beta * second + (1.0 - beta) * slope * slope
        moved = x - adjusted * mean / (F.sqrt(square) + node.number("epsilon", 0.0))
        rest = 1.0 - node.number("norm_coefficient_post", 0.0)
        for each, value in zip(made, (rest * moved, mean, square), strict=True):
            each.append(value)
    return [*made[0], *made[1], *made[2]]


def _thirds(tensors: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    return [tensors[i * count : (i + 1) * count] for i in range(3)]
