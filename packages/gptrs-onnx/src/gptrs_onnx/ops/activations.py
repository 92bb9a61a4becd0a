"""Activation functions; parameters of ONNX have the defaults of the standard."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node, converts

converts.rows({"HardSwish": F.hard_swish, "Softplus": F.softplus})


@converts("Relu")
def relu(x: Tensor) -> Tensor:
    """Return `max(x, 0)`."""
    return F.maximum(x, scalar(0, x.dtype)) if x.dtype.is_integer else F.relu(x)


@converts("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """Return x, times `alpha` below 0."""
    return F.leaky_relu(x, alpha)


@converts("PRelu")
def parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    """Return x, times a slope of its own below 0."""
    return F.where(x < scalar(0, x.dtype), x * slope, x)


@converts("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Return x above `alpha`, 0 elsewhere."""
    return F.where(x > alpha, x, 0.0)


@converts("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Return x, `alpha * (e^x - 1)` below 0."""
    return F.elu(x, alpha)


@converts("Selu")
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    """Return `gamma * elu(x, alpha)` (Klambauer et al. 2017)."""
    return gamma * F.where(x > 0.0, x, alpha * F.expm1(x))


@converts("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Return `max(0, x) + min(0, alpha * (e^(x / alpha) - 1))`."""
    zero = scalar(0, x.dtype)
    return F.maximum(x, zero) + F.minimum(alpha * F.expm1(x / alpha), zero)


@converts("Gelu")
def gelu(node: Node, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution up to x, or its approximation by tanh."""
    if approximate not in ("none", "tanh"):
        node.refuse(f"has the approximation {approximate!a}")
    return F.gelu(x, approximate)


@converts("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Return `x * sigmoid(alpha * x)`."""
    return F.silu(x) if alpha == 1.0 else x * F.sigmoid(alpha * x)


@converts("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Return `clip(alpha * x + beta, 0, 1)`."""
    return F.clamp(x * alpha + beta, 0.0, 1.0)


@converts("Mish")
def mish(x: Tensor) -> Tensor:
    """Return `x * tanh(log(1 + e^x))`."""
    return x * F.tanh(F.softplus(x))


@converts("Softsign")
def softsign(x: Tensor) -> Tensor:
    """Return `x / (1 + |x|)`."""
    return x / (1.0 + F.abs(x))


@converts("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Return x nearer to 0 by `bias`, and 0 within `lambd` of it; integers are cut off."""
    if x.dtype.is_integer:
        return F.cast(shrink(F.cast(x, dtypes.f64), bias=bias, lambd=lambd), x.dtype)
    return F.where(x < -lambd, x + bias, F.where(x > lambd, x - bias, 0.0))


@converts.each({"Softmax": F.softmax, "LogSoftmax": F.log_softmax})
def softmax(
    function: Callable[[Tensor, int], Tensor], node: Node, x: Tensor, *, axis: int | None = None
) -> Tensor:
    """Return the shares of the exponentials along an axis, before opset 13 along all from it on."""
    alone = node.version >= 13
    return along_or_from(function, x, (-1 if alone else 1) if axis is None else axis, alone)


def along_or_from(
    function: Callable[[Tensor, int], Tensor], x: Tensor, axis: int, alone: bool
) -> Tensor:
    """Return a function along one axis, or unless `alone` along that axis and those after it."""
    if alone:
        return function(x, axis)
    flat = F.reshape(x, [*x.shape[: axis % x.rank if x.rank else 0], -1])
    return F.reshape(function(flat, -1), x.shape)


@converts("Hardmax")
def hardmax(node: Node, x: Tensor) -> Tensor:
    """Return 1 for the first largest element along an axis, 0 for others."""
    axis = node.integer("axis", -1 if node.version >= 13 else 1) % x.rank
    flat = x if node.version >= 13 else F.reshape(x, [*x.shape[:axis], -1])
    best = F.argmax(flat, axis, keepdims=True)
    indices = F.reshape(
        F.arange(flat.shape[axis]), [-1 if i == axis else 1 for i in range(flat.rank)]
    )
    return F.reshape(F.cast(F.equal(best, indices), x.dtype), x.shape)


# Steps of optimizers, which the standard has for training.


@converts("ai.onnx.preview.training.Adagrad")
def adagrad(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    """Return weights and sums of squares after a step (Duchi et al. 2011)."""
    rate = rate / (1.0 + F.cast(step, rate.dtype) * decay_factor)
    weights: list[Tensor] = []
    sums: list[Tensor] = []
    for x, gradient, total in zip(*_groups(tensors, 3), strict=True):
        slope = norm_coefficient * x + gradient
        squares = total + slope * slope
        weights.append(x - rate * slope / (F.sqrt(squares) + epsilon))
        sums.append(squares)
    return [*weights, *sums]


@converts("ai.onnx.preview.training.Momentum")
def momentum(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    """Return weights and velocities after a step, by plain or Nesterov's momentum."""
    later = F.where(step > 0, beta, F.ones([], rate.dtype))
    weights: list[Tensor] = []
    speeds: list[Tensor] = []
    for x, gradient, speed in zip(*_groups(tensors, 3), strict=True):
        slope = norm_coefficient * x + gradient
        following = alpha * speed + later * slope
        weights.append(x - rate * (slope + alpha * following if mode == "nesterov" else following))
        speeds.append(following)
    return [*weights, *speeds]


@converts("ai.onnx.preview.training.Adam")
def adam(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Tensor]:
    """Return weights and both moments after a step (Kingma, Ba 2015)."""
    number = F.cast(step, rate.dtype)
    scale = F.sqrt(1.0 - F.pow(beta, number)) / (1.0 - F.pow(alpha, number))
    adjusted = F.where(step > 0, rate * scale, rate)
    made: list[list[Tensor]] = [[], [], []]
    for x, gradient, first, second in zip(*_groups(tensors, 4), strict=True):
        slope = norm_coefficient * x + gradient
        mean = alpha * first + (1.0 - alpha) * slope
        square = beta * second + (1.0 - beta) * slope * slope
        moved = x - adjusted * mean / (F.sqrt(square) + epsilon)
        rest = 1.0 - norm_coefficient_post
        for each, value in zip(made, (rest * moved, mean, square), strict=True):
            each.append(value)
    return [*made[0], *made[1], *made[2]]


def _groups(tensors: tuple[Tensor, ...], number: int) -> list[tuple[Tensor, ...]]:
    """Return as many groups of equal length."""
    count = len(tensors) // number
    return [tensors[i * count : (i + 1) * count] for i in range(number)]
