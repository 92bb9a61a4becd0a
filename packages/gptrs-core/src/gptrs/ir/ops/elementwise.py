"""Ops that compute each element of the result from the elements at the same position."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from gptrs.ir import definitions, dtypes
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import Op, op
from gptrs.ir.tensor_type import TensorType

Kinds = tuple[Kind, ...]
INTEGER: Kinds = ("signed", "unsigned")
FLOAT: Kinds = ("float",)
REAL: Kinds = (*INTEGER, *FLOAT)
NUMBER: Kinds = (*REAL, "complex")
BITS: Kinds = ("bool", *INTEGER)
INEXACT: Kinds = (*FLOAT, "complex")
Direction = Literal["lt", "le", "eq", "ge", "gt", "ne"]
RowType = TypeVar("RowType", bound="type[Row]")


class Row(Op):
    """An op whose operands and result have one type.

    A subclass provides a name and a definition in words; its decorator `@row` gives the rest.
    Primitive, functional, tensor method, conformance cases, random programs and the reference
    kernel follow from them.
    """

    kinds: ClassVar[Kinds]
    """The kinds of element types that the op takes."""
    definition: ClassVar[Callable[..., Any] | None]
    """The op on Python numbers; None if the result depends on the width of the type."""
    ulps: ClassVar[float]
    """Largest error of an f32 or f64 result in units in the last place; 0 means correctly
    rounded."""
    smooth: ClassVar[tuple[float, float, float] | None]
    """(a, b, c): for |x| <= a, the slope is at most b and float results are at most c in
    magnitude."""
    functional: ClassVar[str | None]
    """The name of the functional and tensor method that apply the op to broadcast operands."""


class Unary(Row):
    """A row with one operand."""

    def infer(self, x: TensorType) -> TensorType:
        """Return the type of `x`."""
        self.require_kind(x, *self.kinds)
        return x


class Binary(Row):
    """A row with two operands of one type."""

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        """Return the common type of `lhs` and `rhs`."""
        self.require_same_type(lhs, rhs)
        self.require_kind(lhs, *self.kinds)
        return lhs


def row(
    name: str,
    kinds: Kinds,
    definition: Callable[..., Any] | None = None,
    *,
    ulps: float = 0.0,
    smooth: tuple[float, float, float] | None = None,
    functional: str | None = "",
    commutative: bool = False,
) -> Callable[[RowType], RowType]:
    """Class decorator: register a `Unary` or `Binary` op; `Row` explains each parameter.

    `functional` renames the functional, which otherwise has the name of the op; None creates none.
    """

    def register(cls: RowType) -> RowType:
        cls.kinds, cls.ulps, cls.smooth, cls.commutative = kinds, ulps, smooth, commutative
        # A plain function would become a method, and get the op as its first operand.
        cls.definition = None if definition is None else staticmethod(definition)
        cls.functional = name if functional == "" else functional
        return op(name)(cls)

    return register


@row("neg", NUMBER, operator.neg)
class Neg(Unary):
    """`-x`; integers wrap, so the least signed integer is its own negative."""


@row("abs", REAL, abs)
class Abs(Unary):
    """`|x|`; integers wrap, so the least signed integer is its own absolute value."""


@row("sign", REAL, definitions.sign)
class Sign(Unary):
    """-1, 0 or 1 with the sign of `x`; keeps -0.0 and NaN."""


@row("exp", INEXACT, definitions.exp, ulps=4, smooth=(2.0, 8.0, 8.0))
class Exp(Unary):
    """`e^x`."""


@row(
    "expm1",
    INEXACT,
    definitions.expm1,
    ulps=4,
    smooth=(2.0, 8.0, 8.0),
)
class Expm1(Unary):
    """`e^x - 1`, accurate near 0."""


@row("log", INEXACT, definitions.log, ulps=4)
class Log(Unary):
    """The natural logarithm; -inf at 0, NaN below (complex: the principal branch)."""


@row("log1p", INEXACT, definitions.log1p, ulps=4)
class Log1p(Unary):
    """`log(1 + x)`, accurate near 0; -inf at -1, NaN below."""


@row("sqrt", INEXACT, definitions.sqrt, ulps=1)
class Sqrt(Unary):
    """The square root; NaN below 0, -0.0 at -0.0."""


@row("rsqrt", INEXACT, definitions.rsqrt, ulps=3)
class Rsqrt(Unary):
    """`1 / sqrt(x)`; inf at 0.0, -inf at -0.0, NaN below."""


@row("reciprocal", INEXACT, definitions.reciprocal, ulps=1)
class Reciprocal(Unary):
    """`1 / x`; inf with the sign of `x` at zeros."""


@row("sin", INEXACT, definitions.sin, ulps=4, smooth=(64.0, 1.0, 1.0))
class Sin(Unary):
    """The sine of `x` radians; NaN at infinities."""


@row("cos", INEXACT, definitions.cos, ulps=4, smooth=(64.0, 1.0, 1.0))
class Cos(Unary):
    """The cosine of `x` radians; NaN at infinities."""


@row("tanh", INEXACT, definitions.tanh, ulps=5, smooth=(4.0, 1.0, 1.0))
class Tanh(Unary):
    """The hyperbolic tangent."""


@row("logistic", FLOAT, definitions.logistic, ulps=5, smooth=(4.0, 0.25, 1.0), functional="sigmoid")
class Logistic(Unary):
    """`1 / (1 + e^-x)`, computed so that no intermediate overflows."""


@row("erf", FLOAT, math.erf, ulps=5, smooth=(4.0, 1.25, 1.0))
class Erf(Unary):
    """The error function, `2/sqrt(pi) * integral of e^(-t^2) from 0 to x`."""


@row("floor", FLOAT, definitions.floor)
class Floor(Unary):
    """The largest integral value not above `x`."""


@row("ceil", FLOAT, definitions.ceil)
class Ceil(Unary):
    """The smallest integral value not below `x`."""


@row("round_nearest_even", FLOAT, definitions.round_nearest_even, functional="round")
class RoundNearestEven(Unary):
    """The nearest integral value, halves to the even one."""


@row("not", BITS, definitions.complement, functional="bitwise_not")
class Not(Unary):
    """Logical negation of `i1`, bitwise complement of integers."""


@op("is_finite")
class IsFinite(Op):
    """`i1`: true where `x` is neither infinite nor NaN."""

    def infer(self, x: TensorType) -> TensorType:
        """`i1` of the shape of `x`."""
        self.require_kind(x, *INEXACT)
        return x.with_dtype(dtypes.i1)


@row("add", NUMBER, operator.add, commutative=True)
class Add(Binary):
    """`lhs + rhs`; integers wrap."""


@row("sub", NUMBER, operator.sub)
class Sub(Binary):
    """`lhs - rhs`; integers wrap."""


@row("mul", NUMBER, operator.mul, commutative=True)
class Mul(Binary):
    """`lhs * rhs`; integers wrap."""


@row("div", NUMBER, definitions.divide, ulps=1)
class Div(Binary):
    """`lhs / rhs`; integers truncate toward zero, their division by zero is an error.

    The least signed integer divided by -1 wraps to itself.
    """


@row("rem", REAL, definitions.remainder, functional="fmod")
class Rem(Binary):
    """`lhs - rhs * trunc(lhs / rhs)`: the sign of `lhs`; integer `rhs` of zero is an error."""


@row("pow", INEXACT, definitions.power, ulps=8, functional=None)
class Pow(Binary):
    """`lhs ^ rhs` as IEEE 754 `pow`: 1 at `x^0` and `1^y` for any x, y (NaN too)."""


@row("maximum", ("bool", *REAL), definitions.maximum)
class Maximum(Binary):
    """The larger operand; NaN if either is NaN; of `i1` the logical or.

    Of two zeros with different signs either may come out.
    """


@row("minimum", ("bool", *REAL), definitions.minimum)
class Minimum(Binary):
    """The smaller operand; NaN if either is NaN; of `i1` the logical and.

    Of two zeros with different signs either may come out.
    """


@row("and", BITS, definitions.bit_and, commutative=True, functional="bitwise_and")
class And(Binary):
    """Logical and of `i1`, bitwise and of integers."""


@row("or", BITS, definitions.bit_or, commutative=True, functional="bitwise_or")
class Or(Binary):
    """Logical or of `i1`, bitwise or of integers."""


@row("xor", BITS, definitions.bit_xor, commutative=True, functional="bitwise_xor")
class Xor(Binary):
    """Logical exclusive or of `i1`, bitwise of integers."""


@row("shift_left", INTEGER, functional="left_shift")
class ShiftLeft(Binary):
    """`lhs` shifted up by `rhs` bits, zeros enter; 0 when `rhs` is negative or >= the width."""


@row("shift_right_arithmetic", INTEGER, functional="right_shift")
class ShiftRightArithmetic(Binary):
    """`lhs` shifted down by `rhs` bits, the top bit repeated if the type is signed, zeros if not.

    A negative `rhs` or one >= the width counts as the width: every bit is then the entering one.
    """


@row("shift_right_logical", INTEGER, functional=None)
class ShiftRightLogical(Binary):
    """`lhs` shifted down by `rhs` bits, zeros enter; 0 when `rhs` is negative or >= the width."""


@op("compare")
class Compare(Op):
    """`i1`: `lhs direction rhs`; with a NaN only `ne` is true; complex takes `eq` and `ne` only."""

    direction: Direction

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
        """Return the common type of both branches; `pred` is `i1` of the same shape."""
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
        """Return the common type of the three operands."""
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
        """Return the type of `x`."""
        return x
