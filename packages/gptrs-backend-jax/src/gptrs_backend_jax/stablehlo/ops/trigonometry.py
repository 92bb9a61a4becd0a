"""Trigonometric functions and the error function, of what PTIR has."""

from __future__ import annotations

import math

from gptrs.api import Tensor, dtypes, primitives
from gptrs.api import functionals as F
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.registry import CONVERTERS, ELEMENTWISE, converts


@converts("tan", elementwise=True)
def tangent(node: Node, x: Tensor) -> Tensor:
    """Return the tangent, computed in f64."""
    del node
    wide = primitives.cast(x, dtypes.f64)
    return primitives.cast(primitives.div(primitives.sin(wide), primitives.cos(wide)), x.dtype)


@converts("atan2", elementwise=True)
def two_argument_arc_tangent(node: Node, y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi, computed in f64."""
    if not x.dtype.is_float:
        raise node.error(f"of `{x.type}` is not converted")
    wide_y, wide_x = (primitives.cast(each, dtypes.f64) for each in (y, x))
    rise, run = F.abs(wide_y), F.abs(wide_x)
    large = F.maximum(rise, run)
    slope = F.where(F.equal(rise, run), 1.0, F.minimum(rise, run) / large)
    slope = F.where(large <= 0.0, 0.0, slope)
    angle = _arc_tangent(slope)
    angle = F.where(rise > run, math.pi / 2 - angle, angle)
    angle = F.where(_is_negative(wide_x), math.pi - angle, angle)
    angle = F.where(_is_negative(wide_y), -angle, angle)
    either = F.logical_or(F.is_nan(wide_x), F.is_nan(wide_y))
    return primitives.cast(F.where(either, math.nan, angle), x.dtype)


def _is_negative(x: Tensor) -> Tensor:
    """Return where x is below 0, or is -0."""
    return F.logical_or(x < 0.0, F.reciprocal(x) < 0.0)


def _arc_tangent(x: Tensor) -> Tensor:
    """Return the arc tangent of f64 in [0, 1] to about 1e-15.

    The angle is halved three times, `atan(x) = 2 atan(x / (1 + sqrt(1 + x^2)))`, and few terms of
    the Taylor series are left.
    """
    small = x
    for _ in range(3):
        small = small / (1.0 + F.sqrt(1.0 + small * small))
    square = small * small
    series = square * 0.0
    for power in range(21, 0, -2):
        series = series * square + (1.0 if power % 4 == 1 else -1.0) / power
    return 8.0 * small * series


def erf(node: Node, x: Tensor) -> Tensor:
    """Return the error function, which JAX writes as `chlo.erf`."""
    del node
    return primitives.erf(x)


CONVERTERS["chlo.erf"] = erf
ELEMENTWISE.add("chlo.erf")
