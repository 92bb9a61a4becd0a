"""Elementwise arithmetic with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from gptrs.api import Tensor, dtypes, primitives
from gptrs.api import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import scalar

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": F.add,
    "Sub": F.sub,
    "Mul": F.mul,
    "Div": F.div,
    "BitwiseAnd": F.bitwise_and,
    "BitwiseOr": F.bitwise_or,
    "BitwiseXor": F.bitwise_xor,
}
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": F.abs,
    "BitwiseNot": F.bitwise_not,
    "Ceil": F.ceil,
    "Cos": F.cos,
    "Erf": F.erf,
    "Exp": F.exp,
    "Floor": F.floor,
    "Log": F.log,
    "Neg": F.neg,
    "Reciprocal": F.reciprocal,
    "Round": F.round,
    "Sigmoid": F.sigmoid,
    "Sign": F.sign,
    "Sin": F.sin,
    "Sqrt": F.sqrt,
    "Tanh": F.tanh,
}
_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": F.maximum,
    "Min": F.minimum,
    "Sum": F.add,
    "Mean": F.add,
}


@converts(*_BINARY)
def binary(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Convert an operator of two operands of one type."""
    return _BINARY[node.op_type](lhs, rhs)


@converts(*_UNARY)
def unary(node: Node, x: Tensor) -> Tensor:
    """Convert an operator of one operand."""
    if x.dtype.is_integer and node.op_type in ("Ceil", "Floor", "Round"):
        return x
    return _UNARY[node.op_type](x)


@converts(*_VARIADIC)
def variadic(node: Node, *operands: Tensor) -> Tensor:
    """Convert `Max`, `Min`, `Sum` and `Mean` of any number of operands."""
    total = reduce(_VARIADIC[node.op_type], operands)
    return total / len(operands) if node.op_type == "Mean" else total


@converts("Pow")
def power(node: Node, base: Tensor, exponent: Tensor) -> Tensor:
    """Return `base ** exponent` in the type of the base; the exponent may have another type."""
    del node
    if base.dtype.is_integer and exponent.dtype.is_integer:
        return _integer_power(base, F.cast(exponent, base.dtype))
    if base.dtype == exponent.dtype:
        return F.pow(base, exponent)
    if base.dtype.is_integer:
        wide = exponent.dtype if exponent.dtype.bits > 32 else dtypes.f64
        return F.cast(F.pow(F.cast(base, wide), F.cast(exponent, wide)), base.dtype)
    return F.pow(base, F.cast(exponent, base.dtype))


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return a power of integers >= 0, wrapping as products do, by squaring."""
    result, square = F.broadcast_to(scalar(1, base.dtype), F.add(base, exponent).shape), base
    zero, one = scalar(0, base.dtype), scalar(1, base.dtype)
    for _ in range(6):
        odd = F.equal(F.bitwise_and(exponent, one), one)
        result = F.where(odd, result * square, result)
        square, exponent = square * square, F.right_shift(exponent, one)
    return F.where(F.greater(exponent, zero), zero, result)


@converts("Mod")
def modulo(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the remainder: with the sign of the divisor, or, with `fmod`, of the dividend."""
    return F.fmod(lhs, rhs) if node.flag("fmod") else F.remainder(lhs, rhs)


@converts("BitShift")
def shift(node: Node, x: Tensor, bits: Tensor) -> Tensor:
    """Shift unsigned integers, zeros come in."""
    left = node.text("direction") == "LEFT"
    return F.left_shift(x, bits) if left else F.right_shift(x, bits)


@converts("Tan")
def tangent(node: Node, x: Tensor) -> Tensor:
    """Return `sin(x) / cos(x)`."""
    del node
    return F.sin(x) / F.cos(x)


@converts("Sinh", "Cosh")
def hyperbolic(node: Node, x: Tensor) -> Tensor:
    """Return `(e^x - e^-x) / 2`, by expm1 near 0 where the difference cancels, or their mean."""
    if node.op_type == "Cosh":
        grown = F.exp(F.abs(x) * 0.5)  # halves, so that e^x may be above the largest float
        return grown * (grown * 0.5) + 0.5 * F.exp(-F.abs(x))
    grown = F.expm1(F.abs(x))
    small = F.sign(x) * 0.5 * (grown + grown / (grown + 1.0))
    half = F.exp(F.abs(x) * 0.5)
    return F.where(F.abs(x) > 20.0, F.sign(x) * (half * (half * 0.5)), small)


@converts("Asinh", "Acosh", "Atanh")
def inverse_hyperbolic(node: Node, x: Tensor) -> Tensor:
    """Return the logarithms that these are, in a form that does not cancel near 0 or 1."""
    if node.op_type == "Atanh":
        return 0.5 * (F.log1p(x) - F.log1p(-x))
    if node.op_type == "Acosh":
        less = x - 1.0
        return F.log1p(less + F.sqrt(less * (x + 1.0)))
    size = F.abs(x)
    return F.sign(x) * F.log1p(size + size * size / (1.0 + F.sqrt(size * size + 1.0)))


@converts("Atan")
def arc_tangent(node: Node, x: Tensor) -> Tensor:
    """Return the arc tangent."""
    del node
    return arctan(x)


@converts("Asin", "Acos")
def inverse_trigonometric(node: Node, x: Tensor) -> Tensor:
    """Return `2 atan(x / (1 + sqrt(1 - x^2)))`, or what lacks of pi / 2."""
    angle = 2.0 * arctan(x / (1.0 + F.sqrt((1.0 - x) * (1.0 + x))))
    return angle if node.op_type == "Asin" else 1.5707963267948966 - angle


def arctan(x: Tensor) -> Tensor:
    """Return the arc tangent of floats to about an ulp of f32, 1e-15 in f64.

    Arguments above 1 are turned into their reciprocals, then the angle is halved twice,
    `atan(x) = 2 atan(x / (1 + sqrt(1 + x^2)))`, and the Taylor series has few terms left.
    """
    wide = F.cast(x, dtypes.f64)
    size = F.abs(wide)
    over = size > 1.0
    small = F.where(over, 1.0 / F.maximum(size, scalar(1.0, dtypes.f64)), size)
    for _ in range(3):
        small = small / (1.0 + F.sqrt(1.0 + small * small))
    square, series = small * small, small * 0.0
    for power in range(17, 0, -2):
        series = series * square + (1.0 if power % 4 == 1 else -1.0) / power
    angle = 8.0 * small * series
    angle = F.where(over, 1.5707963267948966 - angle, angle)
    return F.cast(F.where(wide < 0.0, -angle, angle), x.dtype)


@converts("IsNaN")
def is_nan(node: Node, x: Tensor) -> Tensor:
    """Return where x is not a number."""
    del node
    return F.is_nan(x)


@converts("IsInf")
def is_infinite(node: Node, x: Tensor) -> Tensor:
    """Return where x is infinite, of either sign or of one."""
    infinite = ~(F.is_finite(x) | F.is_nan(x))
    if not node.flag("detect_positive", 1):
        infinite = infinite & (x < 0.0)
    if not node.flag("detect_negative", 1):
        infinite = infinite & (x > 0.0)
    return infinite


@converts("Clip")
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Return x between two bounds; where they cross, the upper one."""
    if node.version < 11:
        low = scalar(node.number("min"), x.dtype) if "min" in node else None
        high = scalar(node.number("max"), x.dtype) if "max" in node else None
    x = x if low is None else F.maximum(x, low)
    return x if high is None else F.minimum(x, high)


@converts("BitCast")
def bit_cast(node: Node, x: Tensor) -> Tensor:
    """Return the bits of x read as another type of the same width."""
    dtype = node.dtype("to")
    return F.cast(x, dtype) if x.dtype.is_bool else primitives.bitcast(x, dtype)
