"""Functions of complex128; those of complex64 are computed with them and rounded."""

from __future__ import annotations

import cmath
import math

from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.machine import divide


@register_jitable
def complex_divide(x, y):
    """Return the quotient by Smith's method, which divides by the larger part of `y` first."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    if abs(c) >= abs(d):
        if c == 0.0 and d == 0.0:
            return complex(divide(a, abs(c)), divide(b, abs(c)))
        ratio = divide(d, c)
        scale = divide(1.0, c + d * ratio)
        return complex((a + b * ratio) * scale, (b - a * ratio) * scale)
    ratio = divide(c, d)
    scale = divide(1.0, d + c * ratio)
    return complex((a * ratio + b) * scale, (b * ratio - a) * scale)


@register_jitable
def complex_reciprocal(x):
    """Return `1 / x`."""
    return complex_divide(complex(1.0, 0.0), x)


@register_jitable
def complex_rsqrt(x):
    """Return `1 / sqrt(x)`."""
    return complex_reciprocal(cmath.sqrt(x))


@register_jitable
def complex_power(x, y):
    """Return `x^y` in polar form; 1 at `x^0` and `1^y`, even where the other operand is NaN.

    At 0, the result is 0 for a positive exponent and NaN for any other.
    """
    if (x.real == 1.0 and x.imag == 0.0) or (y.real == 0.0 and y.imag == 0.0):
        return complex(1.0, 0.0)
    if x.real == 0.0 and x.imag == 0.0:
        nothing = 0.0 if y.imag == 0.0 and y.real > 0.0 else math.nan
        return complex(nothing, nothing)
    length, angle = math.hypot(x.real, x.imag), math.atan2(x.imag, x.real)
    size, phase = length**y.real, angle * y.real
    if y.imag != 0.0:
        size *= math.exp(-angle * y.imag)
        phase += y.imag * math.log(length)
    return complex(size * math.cos(phase), size * math.sin(phase))


@register_jitable
def complex_expm1(x):
    """Return `e^x - 1` without cancellation: `expm1(a) cos(b) - 2 sin(b/2)^2 + i e^a sin(b)`."""
    half = math.sin(0.5 * x.imag)
    real = math.expm1(x.real) * math.cos(x.imag) - 2.0 * half * half
    return complex(real, math.exp(x.real) * math.sin(x.imag))


@register_jitable
def complex_log1p(x):
    """Return `log(1 + x)`; near 0 by `log1p(a (2 + a) + b^2) / 2 + i atan2(b, 1 + a)`."""
    if abs(x.real) > 0.5 or abs(x.imag) > 0.5:
        return cmath.log(complex(1.0 + x.real, x.imag))
    real = 0.5 * math.log1p(x.real * (2.0 + x.real) + x.imag * x.imag)
    return complex(real, math.atan2(x.imag, 1.0 + x.real))


@register_jitable
def complex_is_finite(x):
    """Return whether both parts are finite."""
    return math.isfinite(x.real) and math.isfinite(x.imag)
