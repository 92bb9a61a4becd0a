"""Primitives that compute each element from the elements at the same position."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise
from gptrs.ir.ops.elementwise import Direction


def _unary(kind: type[Op]) -> Callable[[Tensor], Tensor]:
    op = kind()

    def primitive(x: Tensor) -> Tensor:
        return apply(op, x)

    primitive.__doc__ = kind.__doc__
    return primitive


def _binary(kind: type[Op]) -> Callable[[Tensor, Tensor], Tensor]:
    op = kind()

    def primitive(lhs: Tensor, rhs: Tensor) -> Tensor:
        return apply(op, lhs, rhs)

    primitive.__doc__ = kind.__doc__
    return primitive


# -- written by tools/elementwise_functions.py from the rows of gptrs.ir.ops.elementwise
neg = _unary(elementwise.Neg)
abs = _unary(elementwise.Abs)
sign = _unary(elementwise.Sign)
exp = _unary(elementwise.Exp)
expm1 = _unary(elementwise.Expm1)
log = _unary(elementwise.Log)
log1p = _unary(elementwise.Log1p)
sqrt = _unary(elementwise.Sqrt)
rsqrt = _unary(elementwise.Rsqrt)
reciprocal = _unary(elementwise.Reciprocal)
sin = _unary(elementwise.Sin)
cos = _unary(elementwise.Cos)
tanh = _unary(elementwise.Tanh)
logistic = _unary(elementwise.Logistic)
erf = _unary(elementwise.Erf)
floor = _unary(elementwise.Floor)
ceil = _unary(elementwise.Ceil)
round_nearest_even = _unary(elementwise.RoundNearestEven)
logical_not = _unary(elementwise.Not)
add = _binary(elementwise.Add)
sub = _binary(elementwise.Sub)
mul = _binary(elementwise.Mul)
div = _binary(elementwise.Div)
rem = _binary(elementwise.Rem)
pow = _binary(elementwise.Pow)
maximum = _binary(elementwise.Maximum)
minimum = _binary(elementwise.Minimum)
bit_and = _binary(elementwise.And)
bit_or = _binary(elementwise.Or)
bit_xor = _binary(elementwise.Xor)
shift_left = _binary(elementwise.ShiftLeft)
shift_right_arithmetic = _binary(elementwise.ShiftRightArithmetic)
shift_right_logical = _binary(elementwise.ShiftRightLogical)

# -- end of what is written

is_finite = _unary(elementwise.IsFinite)
stop_gradient = _unary(elementwise.StopGradient)


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
