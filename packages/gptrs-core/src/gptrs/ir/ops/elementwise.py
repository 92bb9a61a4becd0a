"""Ops that compute each element of the result from the elements at the same position."""

from __future__ import annotations

from typing import ClassVar, Literal

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import Op, op
from gptrs.ir.tensor_type import TensorType

INTEGER: tuple[Kind, ...] = ("signed", "unsigned")
REAL: tuple[Kind, ...] = (*INTEGER, "float")
NUMBER: tuple[Kind, ...] = (*REAL, "complex")
BITS: tuple[Kind, ...] = ("bool", *INTEGER)
FLOATING: tuple[Kind, ...] = ("float", "complex")


class Unary(Op):
    """An op of one operand whose result has the type of the operand."""

    kinds: ClassVar[tuple[Kind, ...]]

    def infer(self, x: TensorType) -> TensorType:
        """The type of `x`."""
        self.require_kind(x, *self.kinds)
        return x


class Binary(Op):
    """An op of two operands of one type, which is also the type of the result."""

    kinds: ClassVar[tuple[Kind, ...]]

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        """The common type of `lhs` and `rhs`."""
        self.require_same_type(lhs, rhs)
        self.require_kind(lhs, *self.kinds)
        return lhs


@op("neg")
class Neg(Unary):
    """`-x`; integers wrap, so the least signed integer is its own negative."""

    kinds = NUMBER


@op("abs")
class Abs(Unary):
    """`|x|`; integers wrap, so the least signed integer is its own absolute value."""

    kinds = REAL


@op("sign")
class Sign(Unary):
    """-1, 0 or 1 with the sign of `x`; keeps -0.0 and NaN."""

    kinds = REAL


@op("exp")
class Exp(Unary):
    """`e^x`."""

    kinds = FLOATING


@op("expm1")
class Expm1(Unary):
    """`e^x - 1`, accurate near 0."""

    kinds = FLOATING


@op("log")
class Log(Unary):
    """The natural logarithm; -inf at 0, NaN below (complex: the principal branch)."""

    kinds = FLOATING


@op("log1p")
class Log1p(Unary):
    """`log(1 + x)`, accurate near 0; -inf at -1, NaN below."""

    kinds = FLOATING


@op("sqrt")
class Sqrt(Unary):
    """The square root; NaN below 0, -0.0 at -0.0."""

    kinds = FLOATING


@op("rsqrt")
class Rsqrt(Unary):
    """`1 / sqrt(x)`; inf at 0.0, -inf at -0.0, NaN below."""

    kinds = FLOATING


@op("reciprocal")
class Reciprocal(Unary):
    """`1 / x`; inf with the sign of `x` at zeros."""

    kinds = FLOATING


@op("sin")
class Sin(Unary):
    """The sine of `x` radians; NaN at infinities."""

    kinds = FLOATING


@op("cos")
class Cos(Unary):
    """The cosine of `x` radians; NaN at infinities."""

    kinds = FLOATING


@op("tanh")
class Tanh(Unary):
    """The hyperbolic tangent."""

    kinds = FLOATING


@op("logistic")
class Logistic(Unary):
    """`1 / (1 + e^-x)`, computed so that no intermediate overflows."""

    kinds = ("float",)


@op("erf")
class Erf(Unary):
    """The error function, `2/sqrt(pi) * integral of e^(-t^2) from 0 to x`."""

    kinds = ("float",)


@op("floor")
class Floor(Unary):
    """The largest integral value not above `x`."""

    kinds = ("float",)


@op("ceil")
class Ceil(Unary):
    """The smallest integral value not below `x`."""

    kinds = ("float",)


@op("round_nearest_even")
class RoundNearestEven(Unary):
    """The nearest integral value, halves to the even one."""

    kinds = ("float",)


@op("not")
class Not(Unary):
    """Logical negation of `i1`, bitwise complement of integers."""

    kinds = BITS


@op("is_finite")
class IsFinite(Op):
    """`i1`: true where `x` is neither infinite nor NaN."""

    def infer(self, x: TensorType) -> TensorType:
        """`i1` of the shape of `x`."""
        self.require_kind(x, *FLOATING)
        return x.with_dtype(dtypes.i1)


@op("add")
class Add(Binary):
    """`lhs + rhs`; integers wrap."""

    kinds = NUMBER
    commutative = True


@op("sub")
class Sub(Binary):
    """`lhs - rhs`; integers wrap."""

    kinds = NUMBER


@op("mul")
class Mul(Binary):
    """`lhs * rhs`; integers wrap."""

    kinds = NUMBER
    commutative = True


@op("div")
class Div(Binary):
    """`lhs / rhs`; integers truncate toward zero, their division by zero is an error.

    The least signed integer divided by -1 wraps to itself.
    """

    kinds = NUMBER


@op("rem")
class Rem(Binary):
    """`lhs - rhs * trunc(lhs / rhs)`: the sign of `lhs`; integer `rhs` of zero is an error."""

    kinds = REAL


@op("pow")
class Pow(Binary):
    """`lhs ^ rhs` as IEEE 754 `pow`: 1 at `x^0` and `1^y` for any x, y (NaN too)."""

    kinds = FLOATING


@op("maximum")
class Maximum(Binary):
    """The larger operand; NaN if either is NaN; of `i1` the logical or.

    Of two zeros with different signs either may come out.
    """

    kinds = ("bool", *REAL)


@op("minimum")
class Minimum(Binary):
    """The smaller operand; NaN if either is NaN; of `i1` the logical and.

    Of two zeros with different signs either may come out.
    """

    kinds = ("bool", *REAL)


@op("and")
class And(Binary):
    """Logical and of `i1`, bitwise and of integers."""

    kinds = BITS
    commutative = True


@op("or")
class Or(Binary):
    """Logical or of `i1`, bitwise or of integers."""

    kinds = BITS
    commutative = True


@op("xor")
class Xor(Binary):
    """Logical exclusive or of `i1`, bitwise of integers."""

    kinds = BITS
    commutative = True


@op("shift_left")
class ShiftLeft(Binary):
    """`lhs` shifted up by `rhs` bits, zeros enter; 0 when `rhs` is negative or >= the width."""

    kinds = INTEGER


@op("shift_right_arithmetic")
class ShiftRightArithmetic(Binary):
    """`lhs` shifted down by `rhs` bits, the top bit repeated if the type is signed, zeros if not.

    A negative `rhs` or one >= the width counts as the width: every bit is then the entering one.
    """

    kinds = INTEGER


@op("shift_right_logical")
class ShiftRightLogical(Binary):
    """`lhs` shifted down by `rhs` bits, zeros enter; 0 when `rhs` is negative or >= the width."""

    kinds = INTEGER


@op("compare")
class Compare(Op):
    """`i1`: `lhs direction rhs`; with a NaN only `ne` is true; complex takes `eq` and `ne` only."""

    direction: Literal["lt", "le", "eq", "ge", "gt", "ne"]

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        """`i1` of the common shape."""
        self.require_same_type(lhs, rhs)
        if lhs.dtype.is_complex and self.direction not in ("eq", "ne"):
            raise self.error(f"cannot order complex numbers by `{self.direction}`", lhs, rhs)
        return lhs.with_dtype(dtypes.i1)


@op("select")
class Select(Op):
    """`on_true` where `pred` is true, else `on_false`."""

    data_operand = 1

    def infer(self, pred: TensorType, on_true: TensorType, on_false: TensorType) -> TensorType:
        """The common type of both branches; `pred` is `i1` of the same shape."""
        if pred.dtype is not dtypes.i1:
            raise self.error("needs an i1 predicate", pred, on_true, on_false)
        if pred.shape != on_true.shape:
            raise self.error("needs a predicate of the same shape", pred, on_true, on_false)
        self.require_same_type(on_true, on_false)
        return on_true


@op("clamp")
class Clamp(Op):
    """`minimum(maximum(x, low), high)`; NaN in any operand gives NaN; `high` wins over `low`."""

    def infer(self, x: TensorType, low: TensorType, high: TensorType) -> TensorType:
        """The common type of the three operands."""
        self.require_same_type(x, low, high)
        self.require_kind(x, *REAL)
        return x


@op("cast")
class Cast(Op):
    """`x` converted to `dtype`.

    Float to float rounds to nearest even and overflows to infinity where the type has one, else to
    NaN. Float to integer truncates toward zero and saturates, NaN gives 0. Integer to float rounds
    to nearest even, integer to integer saturates. To `i1` is `x != 0`, from `i1` 0 or 1. Real to
    complex gets a zero imaginary part; complex to real is refused.
    """

    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        """`dtype` of the shape of `x`."""
        if x.dtype.is_complex and not (self.dtype.is_complex or self.dtype.is_bool):
            raise self.error(f"to {self.dtype} would drop the imaginary part", x)
        return x.with_dtype(self.dtype)


@op("bitcast")
class Bitcast(Op):
    """The bits of `x` read as `dtype`, which has the same width; `i1` takes no part."""

    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        """`dtype` of the shape of `x`."""
        if x.dtype.bits != self.dtype.bits or x.dtype.is_bool or self.dtype.is_bool:
            raise self.error(f"to {self.dtype} needs types of equal width, i1 excluded", x)
        return x.with_dtype(self.dtype)


@op("stop_gradient")
class StopGradient(Op):
    """`x` itself; a mark for automatic differentiation."""

    def infer(self, x: TensorType) -> TensorType:
        """The type of `x`."""
        return x
