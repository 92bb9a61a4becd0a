"""Functionals that are single PTIR ops over broadcast operands."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    BITS,
    INEXACT,
    NUMBERS,
    ORDERED,
    REALS,
    Operand,
    broadcast_pair,
    require_dtype,
)
from gptrs.ir.dtypes import FLOATS, INTEGERS


# -- written by tools/elementwise_functions.py from the rows of gptrs.ir.ops.elementwise
@functional
def neg(x: Tensor) -> Tensor:
    """`-x`; integers wrap, so the least signed integer is its own negative.

    Takes numbers.
    """
    require_dtype("neg", NUMBERS, x=x)
    return primitives.neg(x)


@functional
def abs(x: Tensor) -> Tensor:
    """`|x|`; integers wrap, so the least signed integer is its own absolute value.

    Takes reals.
    """
    require_dtype("abs", REALS, x=x)
    return primitives.abs(x)


@functional
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 with the sign of `x`; keeps -0.0 and NaN.

    Takes reals.
    """
    require_dtype("sign", REALS, x=x)
    return primitives.sign(x)


@functional
def exp(x: Tensor) -> Tensor:
    """`e^x`.

    Takes floats and complex numbers.
    """
    require_dtype("exp", INEXACT, x=x)
    return primitives.exp(x)


@functional
def expm1(x: Tensor) -> Tensor:
    """`e^x - 1`, accurate near 0.

    Takes floats and complex numbers.
    """
    require_dtype("expm1", INEXACT, x=x)
    return primitives.expm1(x)


@functional
def log(x: Tensor) -> Tensor:
    """The natural logarithm; -inf at 0, NaN below (complex: the principal branch).

    Takes floats and complex numbers.
    """
    require_dtype("log", INEXACT, x=x)
    return primitives.log(x)


@functional
def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)`, accurate near 0; -inf at -1, NaN below.

    Takes floats and complex numbers.
    """
    require_dtype("log1p", INEXACT, x=x)
    return primitives.log1p(x)


@functional
def sqrt(x: Tensor) -> Tensor:
    """The square root; NaN below 0, -0.0 at -0.0.

    Takes floats and complex numbers.
    """
    require_dtype("sqrt", INEXACT, x=x)
    return primitives.sqrt(x)


@functional
def rsqrt(x: Tensor) -> Tensor:
    """`1 / sqrt(x)`; inf at 0.0, -inf at -0.0, NaN below.

    Takes floats and complex numbers.
    """
    require_dtype("rsqrt", INEXACT, x=x)
    return primitives.rsqrt(x)


@functional
def reciprocal(x: Tensor) -> Tensor:
    """`1 / x`; inf with the sign of `x` at zeros.

    Takes floats and complex numbers.
    """
    require_dtype("reciprocal", INEXACT, x=x)
    return primitives.reciprocal(x)


@functional
def sin(x: Tensor) -> Tensor:
    """The sine of `x` radians; NaN at infinities.

    Takes floats and complex numbers.
    """
    require_dtype("sin", INEXACT, x=x)
    return primitives.sin(x)


@functional
def cos(x: Tensor) -> Tensor:
    """The cosine of `x` radians; NaN at infinities.

    Takes floats and complex numbers.
    """
    require_dtype("cos", INEXACT, x=x)
    return primitives.cos(x)


@functional
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent.

    Takes floats and complex numbers.
    """
    require_dtype("tanh", INEXACT, x=x)
    return primitives.tanh(x)


@functional
def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + e^-x)`, computed so that no intermediate overflows.

    Takes floats.
    """
    require_dtype("sigmoid", FLOATS, x=x)
    return primitives.logistic(x)


@functional
def erf(x: Tensor) -> Tensor:
    """The error function, `2/sqrt(pi) * integral of e^(-t^2) from 0 to x`.

    Takes floats.
    """
    require_dtype("erf", FLOATS, x=x)
    return primitives.erf(x)


@functional
def floor(x: Tensor) -> Tensor:
    """The largest integral value not above `x`.

    Takes floats.
    """
    require_dtype("floor", FLOATS, x=x)
    return primitives.floor(x)


@functional
def ceil(x: Tensor) -> Tensor:
    """The smallest integral value not below `x`.

    Takes floats.
    """
    require_dtype("ceil", FLOATS, x=x)
    return primitives.ceil(x)


@functional
def round(x: Tensor) -> Tensor:
    """The nearest integral value, halves to the even one.

    Takes floats.
    """
    require_dtype("round", FLOATS, x=x)
    return primitives.round_nearest_even(x)


@functional
def bitwise_not(x: Tensor) -> Tensor:
    """Logical negation of `i1`, bitwise complement of integers.

    Takes integers and i1.
    """
    require_dtype("bitwise_not", BITS, x=x)
    return primitives.logical_not(x)


@functional
def add(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs + rhs`; integers wrap.

    Takes numbers of one element type, over their broadcast shape.
    """
    return primitives.add(*broadcast_pair("add", lhs, rhs, NUMBERS))


@functional
def sub(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs - rhs`; integers wrap.

    Takes numbers of one element type, over their broadcast shape.
    """
    return primitives.sub(*broadcast_pair("sub", lhs, rhs, NUMBERS))


@functional
def mul(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs * rhs`; integers wrap.

    Takes numbers of one element type, over their broadcast shape.
    """
    return primitives.mul(*broadcast_pair("mul", lhs, rhs, NUMBERS))


@functional
def div(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs / rhs`; integers truncate toward zero, their division by zero is an error.

    The least signed integer divided by -1 wraps to itself.

    Takes numbers of one element type, over their broadcast shape.
    """
    return primitives.div(*broadcast_pair("div", lhs, rhs, NUMBERS))


@functional
def fmod(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs - rhs * trunc(lhs / rhs)`: the sign of `lhs`; integer `rhs` of zero is an error.

    Takes reals of one element type, over their broadcast shape.
    """
    return primitives.rem(*broadcast_pair("fmod", lhs, rhs, REALS))


@functional
def maximum(lhs: Operand, rhs: Operand) -> Tensor:
    """The larger operand; NaN if either is NaN; of `i1` the logical or.

    Of two zeros with different signs either may come out.

    Takes reals and i1 of one element type, over their broadcast shape.
    """
    return primitives.maximum(*broadcast_pair("maximum", lhs, rhs, ORDERED))


@functional
def minimum(lhs: Operand, rhs: Operand) -> Tensor:
    """The smaller operand; NaN if either is NaN; of `i1` the logical and.

    Of two zeros with different signs either may come out.

    Takes reals and i1 of one element type, over their broadcast shape.
    """
    return primitives.minimum(*broadcast_pair("minimum", lhs, rhs, ORDERED))


@functional
def bitwise_and(lhs: Operand, rhs: Operand) -> Tensor:
    """Logical and of `i1`, bitwise and of integers.

    Takes integers and i1 of one element type, over their broadcast shape.
    """
    return primitives.bit_and(*broadcast_pair("bitwise_and", lhs, rhs, BITS))


@functional
def bitwise_or(lhs: Operand, rhs: Operand) -> Tensor:
    """Logical or of `i1`, bitwise or of integers.

    Takes integers and i1 of one element type, over their broadcast shape.
    """
    return primitives.bit_or(*broadcast_pair("bitwise_or", lhs, rhs, BITS))


@functional
def bitwise_xor(lhs: Operand, rhs: Operand) -> Tensor:
    """Logical exclusive or of `i1`, bitwise of integers.

    Takes integers and i1 of one element type, over their broadcast shape.
    """
    return primitives.bit_xor(*broadcast_pair("bitwise_xor", lhs, rhs, BITS))


@functional
def left_shift(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs` shifted up by `rhs` bits, zeros enter; 0 when `rhs` is negative or >= the width.

    Takes integers of one element type, over their broadcast shape.
    """
    return primitives.shift_left(*broadcast_pair("left_shift", lhs, rhs, INTEGERS))


@functional
def right_shift(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs` shifted down by `rhs` bits, the top bit repeated if the type is signed, zeros if not.

    A negative `rhs` or one >= the width counts as the width: every bit is then the entering one.

    Takes integers of one element type, over their broadcast shape.
    """
    return primitives.shift_right_arithmetic(*broadcast_pair("right_shift", lhs, rhs, INTEGERS))


# -- end of what is written
