"""Elementwise arithmetic with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
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
    "Acos": F.acos,
    "Acosh": F.acosh,
    "Asin": F.asin,
    "Asinh": F.asinh,
    "Atan": F.atan,
    "Atanh": F.atanh,
    "BitwiseNot": F.bitwise_not,
    "Ceil": F.ceil,
    "Cos": F.cos,
    "Cosh": F.cosh,
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
    "Sinh": F.sinh,
    "Sqrt": F.sqrt,
    "Tan": F.tan,
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
    """Return powers of integers by squaring; they wrap as products do.

    Exponents below 0 and from 64 on give powers of 1 and -1, and 0 for other bases.
    """
    result, square = F.broadcast_to(scalar(1, base.dtype), F.add(base, exponent).shape), base
    zero, one = scalar(0, base.dtype), scalar(1, base.dtype)
    left = exponent
    for _ in range(6):
        odd = F.equal(F.bitwise_and(left, one), one)
        result = F.where(odd, result * square, result)
        square, left = square * square, F.right_shift(left, one)
    odd = F.equal(F.bitwise_and(exponent, one), one)
    unit = F.where(odd, base, base * base)
    beyond = F.where(F.equal(F.abs(base), one), unit, zero)
    is_beyond = F.logical_or(F.greater(left, zero), F.less(exponent, zero))
    return F.where(is_beyond, beyond, result)


@converts("Mod")
def modulo(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the remainder: with the sign of the divisor, or, with `fmod`, of the dividend."""
    return F.fmod(lhs, rhs) if node.flag("fmod") else F.remainder(lhs, rhs)


@converts("BitShift")
def shift(node: Node, x: Tensor, bits: Tensor) -> Tensor:
    """Shift unsigned integers, zeros come in."""
    left = node.text("direction") == "LEFT"
    return F.left_shift(x, bits) if left else F.right_shift(x, bits)


@converts("IsNaN")
def is_nan(node: Node, x: Tensor) -> Tensor:
    """Return where x is not a number."""
    del node
    return F.is_nan(x)


@converts("IsInf")
def is_infinite(node: Node, x: Tensor) -> Tensor:
    """Return where x is infinite, of either sign or of one."""
    infinite = F.is_inf(x)
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
