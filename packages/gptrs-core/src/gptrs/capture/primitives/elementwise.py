"""Primitives that compute each element from the elements at the same position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise

Direction = OneOf["lt", "le", "eq", "ge", "gt", "ne"]


def _unary(kind: Callable[[], Op], doc: str) -> Callable[[Tensor], Tensor]:
    op = kind()

    def primitive(x: Tensor) -> Tensor:
        return apply(op, x)

    primitive.__doc__ = doc
    return primitive


def _binary(kind: Callable[[], Op], doc: str) -> Callable[[Tensor, Tensor], Tensor]:
    op = kind()

    def primitive(lhs: Tensor, rhs: Tensor) -> Tensor:
        return apply(op, lhs, rhs)

    primitive.__doc__ = doc
    return primitive


neg = _unary(elementwise.Neg, "-x.")
abs = _unary(elementwise.Abs, "|x|.")
sign = _unary(elementwise.Sign, "-1, 0 or 1.")
exp = _unary(elementwise.Exp, "e^x.")
expm1 = _unary(elementwise.Expm1, "e^x - 1.")
log = _unary(elementwise.Log, "The natural logarithm.")
log1p = _unary(elementwise.Log1p, "log(1 + x).")
sqrt = _unary(elementwise.Sqrt, "The square root.")
rsqrt = _unary(elementwise.Rsqrt, "1 / sqrt(x).")
reciprocal = _unary(elementwise.Reciprocal, "1 / x.")
sin = _unary(elementwise.Sin, "The sine.")
cos = _unary(elementwise.Cos, "The cosine.")
tanh = _unary(elementwise.Tanh, "The hyperbolic tangent.")
logistic = _unary(elementwise.Logistic, "1 / (1 + e^-x).")
erf = _unary(elementwise.Erf, "The error function.")
floor = _unary(elementwise.Floor, "The largest integral value not above x.")
ceil = _unary(elementwise.Ceil, "The smallest integral value not below x.")
round_nearest_even = _unary(
    elementwise.RoundNearestEven, "The nearest integral value, halves to even."
)
logical_not = _unary(elementwise.Not, "Logical or bitwise complement (op `not`).")
is_finite = _unary(elementwise.IsFinite, "i1: neither infinite nor NaN.")
stop_gradient = _unary(
    elementwise.StopGradient, "x itself, marked as constant for differentiation."
)

add = _binary(elementwise.Add, "lhs + rhs.")
sub = _binary(elementwise.Sub, "lhs - rhs.")
mul = _binary(elementwise.Mul, "lhs * rhs.")
div = _binary(elementwise.Div, "lhs / rhs; integers truncate toward zero.")
rem = _binary(elementwise.Rem, "The remainder with the sign of lhs.")
pow = _binary(elementwise.Pow, "lhs ^ rhs.")
maximum = _binary(elementwise.Maximum, "The larger operand; NaN wins.")
minimum = _binary(elementwise.Minimum, "The smaller operand; NaN wins.")
bit_and = _binary(elementwise.And, "Logical or bitwise and (op `and`).")
bit_or = _binary(elementwise.Or, "Logical or bitwise or (op `or`).")
bit_xor = _binary(elementwise.Xor, "Logical or bitwise exclusive or (op `xor`).")
shift_left = _binary(elementwise.ShiftLeft, "lhs shifted up by rhs bits.")
shift_right_arithmetic = _binary(
    elementwise.ShiftRightArithmetic, "lhs shifted down, the sign repeated."
)
shift_right_logical = _binary(elementwise.ShiftRightLogical, "lhs shifted down, zeros enter.")


def compare(lhs: Tensor, rhs: Tensor, direction: Direction) -> Tensor:
    """i1: `lhs direction rhs`."""
    return apply(elementwise.Compare(direction), lhs, rhs)


def select(pred: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor:
    """on_true where pred holds, else on_false."""
    return apply(elementwise.Select(), pred, on_true, on_false)


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """minimum(maximum(x, low), high)."""
    return apply(elementwise.Clamp(), x, low, high)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x converted to dtype."""
    return apply(elementwise.Cast(dtype), x)


def bitcast(x: Tensor, dtype: DType) -> Tensor:
    """Return the bits of x read as dtype."""
    return apply(elementwise.Bitcast(dtype), x)
