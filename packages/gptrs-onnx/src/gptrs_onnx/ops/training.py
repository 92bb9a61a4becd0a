"""Steps of optimizers, which the standard has for training."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts

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
