"""Trigonometric and hyperbolic functions and their inverses, of what PTIR has."""

from __future__ import annotations

import math

from gptrs.api import Tensor, dtypes
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.registry import converts
from gptrs_torch.values import converted, operand

_LARGE = 20.0
"""From here on `e^-x` is nothing beside `e^x`."""


@converts("tan", "sinh", "cosh", "asinh", "acosh", "atanh", "asin", "acos", "atan")
def trigonometric(node: Node, x: Tensor) -> Tensor:
    """Convert a function of one operand, computed in f64 and rounded once."""
    return converted(_FUNCTIONS[name_of(node)](converted(x, dtypes.f64)), node.dtype)


@converts("atan2")
def two_argument_arc_tangent(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi."""
    wide_y, wide_x = operand(y, dtypes.f64), operand(x, dtypes.f64)
    rise, run = F.abs(wide_y), F.abs(wide_x)
    large = F.maximum(rise, run)
    slope = F.where(F.equal(rise, run), 1.0, F.minimum(rise, run) / large)
    slope = F.where(F.equal(large, operand(0, dtypes.f64)), 0.0, slope)
    angle = _arc_tangent(slope)
    angle = F.where(rise > run, math.pi / 2 - angle, angle)
    angle = F.where(_is_negative(wide_x), math.pi - angle, angle)
    angle = F.where(_is_negative(wide_y), -angle, angle)
    either = F.logical_or(F.is_nan(wide_x), F.is_nan(wide_y))
    return converted(F.where(either, math.nan, angle), node.dtype)


def _is_negative(x: Tensor) -> Tensor:
    """Return where x is below 0, or is -0."""
    return F.logical_or(x < 0.0, F.reciprocal(x) < 0.0)


def _tangent(x: Tensor) -> Tensor:
    return F.sin(x) / F.cos(x)


def _hyperbolic_cosine(x: Tensor) -> Tensor:
    grown = F.exp(F.abs(x) * 0.5)  # halves, so that e^x may be above the largest float
    return grown * (grown * 0.5) + 0.5 * F.exp(-F.abs(x))


def _hyperbolic_sine(x: Tensor) -> Tensor:
    size = F.abs(x)
    grown, half = F.expm1(size), F.exp(size * 0.5)
    near = 0.5 * (grown + grown / (grown + 1.0))
    return F.sign(x) * F.where(size > _LARGE, half * (half * 0.5), near)


def _inverse_sine(x: Tensor) -> Tensor:
    size = F.abs(x)
    grown = size + size * size / (1.0 + F.sqrt(size * size + 1.0))
    huge = F.log(size) + math.log(2)
    return F.sign(x) * F.where(size > 1e150, huge, F.log1p(grown))


def _inverse_cosine(x: Tensor) -> Tensor:
    less = x - 1.0
    near = F.log1p(less + F.sqrt(less) * F.sqrt(x + 1.0))
    return F.where(x > 1e150, F.log(x) + math.log(2), near)


def _inverse_tangent(x: Tensor) -> Tensor:
    return 0.5 * (F.log1p(x) - F.log1p(-x))


def _arc_sine(x: Tensor) -> Tensor:
    return 2.0 * _arc_tangent(x / (1.0 + F.sqrt((1.0 - x) * (1.0 + x))))


def _arc_cosine(x: Tensor) -> Tensor:
    return math.pi / 2 - _arc_sine(x)


def _arc_tangent(x: Tensor) -> Tensor:
    """Return the arc tangent of f64 to about 1e-15.

    Arguments above 1 become their reciprocals; the angle is halved three times,
    `atan(x) = 2 atan(x / (1 + sqrt(1 + x^2)))`, and few terms of the Taylor series are left.
    """
    size = F.abs(x)
    over = size > 1.0
    small = F.where(over, F.reciprocal(size), size)
    for _ in range(3):
        small = small / (1.0 + F.sqrt(1.0 + small * small))
    square = small * small
    series = square * 0.0
    for power in range(21, 0, -2):
        series = series * square + (1.0 if power % 4 == 1 else -1.0) / power
    angle = 8.0 * small * series
    angle = F.where(over, math.pi / 2 - angle, angle)
    return F.where(x < 0.0, -angle, angle)


_FUNCTIONS = {
    "tan": _tangent,
    "sinh": _hyperbolic_sine,
    "cosh": _hyperbolic_cosine,
    "asinh": _inverse_sine,
    "acosh": _inverse_cosine,
    "atanh": _inverse_tangent,
    "asin": _arc_sine,
    "acos": _arc_cosine,
    "atan": _arc_tangent,
}
