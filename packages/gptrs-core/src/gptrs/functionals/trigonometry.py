"""Trigonometric and hyperbolic functions and their inverses, except `sin`, `cos` and `tanh`.

Computed in f64 from PTIR ops and rounded once: f32 results are correctly rounded except for a rare
unit in the last place; f64 results are off by a few units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gptrs.capture.tensor import Tensor
from gptrs.functionals import elementwise
from gptrs.functionals.arithmetic import equal, is_inf, is_nan, logical_and, logical_or, where
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import Operand, broadcast_pair, converted, require_float
from gptrs.ir.dtypes import FLOATS, f64

_GROWN: Final = 20.0
"""From here, `e^x + e^-x` rounds to `e^x`."""
_HUGE: Final = 1e150
"""From here, `x^2` may be infinite, and `x^2 + 1` rounds to `x^2`."""
_HALVINGS: Final = 3
"""How often the angle of an arc tangent is halved before the Taylor series."""
_LAST_POWER: Final = 21


@functional
def tan(x: Tensor) -> Tensor:
    """`sin(x) / cos(x)` of floats; NaN for infinities."""
    return _rounded("tan", x, lambda wide: elementwise.sin(wide) / elementwise.cos(wide))


@functional
def sinh(x: Tensor) -> Tensor:
    """`(e^x - e^-x) / 2` of floats, accurate near 0."""
    return _rounded("sinh", x, _hyperbolic_sine)


@functional
def cosh(x: Tensor) -> Tensor:
    """`(e^x + e^-x) / 2` of floats."""
    return _rounded("cosh", x, _hyperbolic_cosine)


@functional
def asin(x: Tensor) -> Tensor:
    """The angle in [-pi/2, pi/2] with the sine `x` of floats; NaN outside of [-1, 1]."""
    return _rounded("asin", x, _angle_of_sine)


@functional
def acos(x: Tensor) -> Tensor:
    """The angle in [0, pi] with the cosine `x` of floats; NaN outside of [-1, 1]."""
    return _rounded("acos", x, _angle_of_cosine)


@functional
def atan(x: Tensor) -> Tensor:
    """The angle in [-pi/2, pi/2] with the tangent `x` of floats."""
    return _rounded("atan", x, _angle)


@functional
def atan2(y: Operand, x: Operand) -> Tensor:
    """The angle of the point (x, y) in [-pi, pi], over the broadcast shape of two floats.

    Signs of zeros count, and two infinities are a diagonal, as in C99.
    """
    rise, run = broadcast_pair("atan2", y, x, FLOATS)
    wide_y, wide_x = converted(rise, f64), converted(run, f64)
    return converted(_point_angle(wide_y, wide_x), rise.dtype)


@functional
def asinh(x: Tensor) -> Tensor:
    """The inverse of `sinh` for floats, accurate near 0."""
    return _rounded("asinh", x, _inverse_sine)


@functional
def acosh(x: Tensor) -> Tensor:
    """The inverse of `cosh` for floats >= 1, accurate near 1; NaN below."""
    return _rounded("acosh", x, _inverse_cosine)


@functional
def atanh(x: Tensor) -> Tensor:
    """The inverse of `tanh` for floats; infinite at -1 and 1, NaN beyond."""
    return _rounded(
        "atanh", x, lambda wide: 0.5 * (elementwise.log1p(wide) - elementwise.log1p(-wide))
    )


def _rounded(name: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a function of x, computed in f64 and rounded to the type of x."""
    require_float(name, x=x)
    return converted(function(converted(x, f64)), x.dtype)


def _hyperbolic_cosine(x: Tensor) -> Tensor:
    # Not `abs`, whose derivative at 0 is 0: the second derivative here is 1.
    size = where(x < 0.0, -x, x)
    # In halves, since e^x may overflow while sinh and cosh do not.
    grown = elementwise.exp(size * 0.5)
    return grown * (grown * 0.5) + 0.5 * elementwise.exp(-size)


def _hyperbolic_sine(x: Tensor) -> Tensor:
    size = elementwise.abs(x)
    # `e^x - e^-x` would cancel near 0; with g = expm1(x) it equals g + g / (g + 1).
    is_large, half = size > _GROWN, elementwise.exp(size * 0.5)
    grown = elementwise.expm1(where(is_large, 0.0, size))
    near = 0.5 * (grown + grown / (grown + 1.0))
    return _odd(x, where(is_large, half * (half * 0.5), near))


def _inverse_sine(x: Tensor) -> Tensor:
    size = elementwise.abs(x)
    is_huge = size > _HUGE
    near = where(is_huge, 0.0, size)
    # `x + sqrt(x^2 + 1) - 1` without the cancellation near 0.
    grown = near + near * near / (1.0 + elementwise.sqrt(near * near + 1.0))
    huge = elementwise.log(where(is_huge, size, 1.0)) + math.log(2)
    return _odd(x, where(is_huge, huge, elementwise.log1p(grown)))


def _odd(x: Tensor, of_size: Tensor) -> Tensor:
    """Return a function whose values for |x| are `of_size`, with the slope 1 at 0, where |x| has
    none; zeros keep their signs.
    """
    return where(equal(x, 0.0), x, where(x < 0.0, -of_size, of_size))


def _inverse_cosine(x: Tensor) -> Tensor:
    # `x^2 - 1` as a product: squared, it would cancel near 1.
    less = x - 1.0
    near = elementwise.log1p(less + elementwise.sqrt(less) * elementwise.sqrt(x + 1.0))
    return where(x > _HUGE, elementwise.log(x) + math.log(2), near)


# A root of each factor: of a product or a quotient, the derivative at -1 and 1 would be NaN.
def _angle_of_sine(x: Tensor) -> Tensor:
    cosine = elementwise.sqrt(1.0 - x) * elementwise.sqrt(1.0 + x)
    return 2.0 * _angle(x / (1.0 + cosine))


def _angle_of_cosine(x: Tensor) -> Tensor:
    # Not `abs`, whose derivative at 0 is 0.
    size = where(x < 0.0, -x, x)
    angle = 2.0 * _angle(elementwise.sqrt(1.0 - size) / elementwise.sqrt(1.0 + size))
    return where(x < 0.0, math.pi - angle, angle)


def _angle(x: Tensor) -> Tensor:
    """Return the arc tangent of f64 to about 1e-15.

    Arguments above 1 become their reciprocals; the angle is halved three times,
    `atan(x) = 2 atan(x / (1 + sqrt(1 + x^2)))`, and few terms of the Taylor series are left.
    """
    size = elementwise.abs(x)
    over = size > 1.0
    # Selected before the division, too: the slope of 1 / 0 would make the derivative NaN.
    small = where(over, elementwise.reciprocal(where(over, size, 1.0)), size)
    for _ in range(_HALVINGS):
        small = small / (1.0 + elementwise.sqrt(1.0 + small * small))
    square = small * small
    series = square * 0.0
    for power in range(_LAST_POWER, 0, -2):
        series = series * square + (1.0 if power % 4 == 1 else -1.0) / power
    angle = 2.0**_HALVINGS * small * series
    return _odd(x, where(over, math.pi / 2 - angle, angle))


def _point_angle(y: Tensor, x: Tensor) -> Tensor:
    down, back = _is_negative(y), _is_negative(x)
    # Not `abs`, whose derivative at 0 is 0.
    rise, run = where(down, -y, y), where(back, -x, x)
    # The smaller over the larger, so that no quotient overflows. Selected, since the derivatives of
    # `minimum` and `maximum` would cancel on the diagonal.
    steep = rise > run
    small, large = where(steep, run, rise), where(steep, rise, run)
    # Two infinities would divide to NaN; C99 makes them a diagonal (Annex F).
    diagonal = logical_and(is_inf(small), is_inf(large))
    slope = where(diagonal, 1.0, small / where(equal(large, 0.0), 1.0, large))
    angle = _angle(slope)
    angle = where(steep, math.pi / 2 - angle, angle)
    angle = where(back, math.pi - angle, angle)
    angle = where(down, -angle, angle)
    return where(logical_or(is_nan(x), is_nan(y)), math.nan, angle)


def _is_negative(x: Tensor) -> Tensor:
    """Return where x is below 0, or is -0."""
    # The reciprocal of -0.0 is -inf: the only way to see its sign by comparison.
    return logical_or(x < 0.0, elementwise.reciprocal(x) < 0.0)
