"""Primitives that compute each element from the elements at the same position."""

from __future__ import annotations

from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import elementwise

Direction = OneOf["lt", "le", "eq", "ge", "gt", "ne"]


def neg(x: Tensor) -> Tensor:
    """-x."""
    return apply(elementwise.Neg(), x)


def abs(x: Tensor) -> Tensor:
    """|x|."""
    return apply(elementwise.Abs(), x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return apply(elementwise.Sign(), x)


def exp(x: Tensor) -> Tensor:
    """e^x."""
    return apply(elementwise.Exp(), x)


def expm1(x: Tensor) -> Tensor:
    """e^x - 1."""
    return apply(elementwise.Expm1(), x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return apply(elementwise.Log(), x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x)."""
    return apply(elementwise.Log1p(), x)


def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return apply(elementwise.Sqrt(), x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return apply(elementwise.Rsqrt(), x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return apply(elementwise.Reciprocal(), x)


def sin(x: Tensor) -> Tensor:
    """The sine."""
    return apply(elementwise.Sin(), x)


def cos(x: Tensor) -> Tensor:
    """The cosine."""
    return apply(elementwise.Cos(), x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return apply(elementwise.Tanh(), x)


def logistic(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return apply(elementwise.Logistic(), x)


def erf(x: Tensor) -> Tensor:
    """The error function."""
    return apply(elementwise.Erf(), x)


def floor(x: Tensor) -> Tensor:
    """The largest integral value not above x."""
    return apply(elementwise.Floor(), x)


def ceil(x: Tensor) -> Tensor:
    """The smallest integral value not below x."""
    return apply(elementwise.Ceil(), x)


def round_nearest_even(x: Tensor) -> Tensor:
    """The nearest integral value, halves to even."""
    return apply(elementwise.RoundNearestEven(), x)


def logical_not(x: Tensor) -> Tensor:
    """Logical or bitwise complement (op `not`)."""
    return apply(elementwise.Not(), x)


def is_finite(x: Tensor) -> Tensor:
    """i1: neither infinite nor NaN."""
    return apply(elementwise.IsFinite(), x)


def stop_gradient(x: Tensor) -> Tensor:
    """x itself, marked as constant for differentiation."""
    return apply(elementwise.StopGradient(), x)


def add(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs + rhs."""
    return apply(elementwise.Add(), lhs, rhs)


def sub(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs - rhs."""
    return apply(elementwise.Sub(), lhs, rhs)


def mul(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs * rhs."""
    return apply(elementwise.Mul(), lhs, rhs)


def div(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs / rhs; integers truncate toward zero."""
    return apply(elementwise.Div(), lhs, rhs)


def rem(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The remainder with the sign of lhs."""
    return apply(elementwise.Rem(), lhs, rhs)


def pow(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs ^ rhs."""
    return apply(elementwise.Pow(), lhs, rhs)


def maximum(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The larger operand; NaN wins."""
    return apply(elementwise.Maximum(), lhs, rhs)


def minimum(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The smaller operand; NaN wins."""
    return apply(elementwise.Minimum(), lhs, rhs)


def bit_and(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Logical or bitwise and (op `and`)."""
    return apply(elementwise.And(), lhs, rhs)


def bit_or(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Logical or bitwise or (op `or`)."""
    return apply(elementwise.Or(), lhs, rhs)


def bit_xor(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Logical or bitwise exclusive or (op `xor`)."""
    return apply(elementwise.Xor(), lhs, rhs)


def shift_left(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs shifted up by rhs bits."""
    return apply(elementwise.ShiftLeft(), lhs, rhs)


def shift_right_arithmetic(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs shifted down, the sign repeated."""
    return apply(elementwise.ShiftRightArithmetic(), lhs, rhs)


def shift_right_logical(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs shifted down, zeros enter."""
    return apply(elementwise.ShiftRightLogical(), lhs, rhs)


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
    """The bits of x read as dtype."""
    return apply(elementwise.Bitcast(dtype), x)
