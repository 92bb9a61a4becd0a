"""Elementary functions of one tensor, each element on its own."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import INEXACT, NUMBERS, REALS, require_dtype, require_float


@functional
def abs(x: Tensor) -> Tensor:
    """`|x|` of reals; the least signed integer stays as it is, since its negative wraps."""
    require_dtype("abs", REALS, x=x)
    return primitives.abs(x)


@functional
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 of reals; keeps -0.0 and NaN (`np.sign`)."""
    require_dtype("sign", REALS, x=x)
    return primitives.sign(x)


@functional
def square(x: Tensor) -> Tensor:
    """`x * x` of numbers; integers wrap (`np.square`)."""
    require_dtype("square", NUMBERS, x=x)
    return primitives.mul(x, x)


@functional
def reciprocal(x: Tensor) -> Tensor:
    """`1 / x` of floats or complex numbers; inf with the sign of `x` at zeros."""
    require_dtype("reciprocal", INEXACT, x=x)
    return primitives.reciprocal(x)


@functional
def exp(x: Tensor) -> Tensor:
    """`e^x` of floats or complex numbers."""
    require_dtype("exp", INEXACT, x=x)
    return primitives.exp(x)


@functional
def expm1(x: Tensor) -> Tensor:
    """`e^x - 1` of floats or complex numbers, accurate near 0."""
    require_dtype("expm1", INEXACT, x=x)
    return primitives.expm1(x)


@functional
def log(x: Tensor) -> Tensor:
    """The natural logarithm of floats or complex numbers; -inf at 0, NaN below."""
    require_dtype("log", INEXACT, x=x)
    return primitives.log(x)


@functional
def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)` of floats or complex numbers, accurate near 0; -inf at -1, NaN below."""
    require_dtype("log1p", INEXACT, x=x)
    return primitives.log1p(x)


@functional
def sqrt(x: Tensor) -> Tensor:
    """The square root of floats or complex numbers; NaN below 0, -0.0 at -0.0."""
    require_dtype("sqrt", INEXACT, x=x)
    return primitives.sqrt(x)


@functional
def rsqrt(x: Tensor) -> Tensor:
    """`1 / sqrt(x)` of floats or complex numbers; inf at 0.0, -inf at -0.0, NaN below."""
    require_dtype("rsqrt", INEXACT, x=x)
    return primitives.rsqrt(x)


@functional
def sin(x: Tensor) -> Tensor:
    """The sine of floats or complex numbers, in radians; NaN at infinities."""
    require_dtype("sin", INEXACT, x=x)
    return primitives.sin(x)


@functional
def cos(x: Tensor) -> Tensor:
    """The cosine of floats or complex numbers, in radians; NaN at infinities."""
    require_dtype("cos", INEXACT, x=x)
    return primitives.cos(x)


@functional
def erf(x: Tensor) -> Tensor:
    """The error function `2/sqrt(pi) * integral of e^(-t^2) from 0 to x` of floats."""
    require_float("erf", x=x)
    return primitives.erf(x)


@functional
def floor(x: Tensor) -> Tensor:
    """The largest integral value not above `x`, as a float of the same type."""
    require_float("floor", x=x)
    return primitives.floor(x)


@functional
def ceil(x: Tensor) -> Tensor:
    """The smallest integral value not below `x`, as a float of the same type."""
    require_float("ceil", x=x)
    return primitives.ceil(x)


@functional
def round(x: Tensor) -> Tensor:
    """The nearest integral value, halves to the even one, as a float of the same type."""
    require_float("round", x=x)
    return primitives.round_nearest_even(x)
