"""Arithmetic with NumPy's broadcasting rules; Python's operators on tensors call it."""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    INEXACT,
    NUMBERS,
    ORDERED,
    REALS,
    Operand,
    broadcast,
    broadcast_pair,
    converted,
    expand,
    require_dtype,
    require_float,
    splat,
)
from gptrs.ir.dtypes import FLOATS, f32, f64, i1
from gptrs.ir.size_guards import broadcast_shapes


@functional
def square(x: Tensor) -> Tensor:
    """`x * x` of numbers; integers wrap (`np.square`)."""
    require_dtype("square", NUMBERS, x=x)
    return primitives.mul(x, x)


@functional
def trunc(x: Tensor) -> Tensor:
    """The integral value nearest to floats `x` toward 0; zeros keep their signs."""
    require_float("trunc", x=x)
    below = primitives.compare(x, splat(0, x.dtype, x.shape), "lt")
    return primitives.select(below, primitives.ceil(x), primitives.floor(x))


@functional
def exp2(x: Tensor) -> Tensor:
    """`2^x` of floats, as `pow` computes it."""
    require_float("exp2", x=x)
    return primitives.pow(splat(2, x.dtype, x.shape), x)


@functional
def log2(x: Tensor) -> Tensor:
    """The logarithm of floats to base 2, to a few units in the last place of f64; NaN below 0."""
    return _logarithm("log2", x, 2)


@functional
def log10(x: Tensor) -> Tensor:
    """The logarithm of floats to base 10, to a few units in the last place of f64; NaN below 0."""
    return _logarithm("log10", x, 10)


@functional
def remainder(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs - rhs * floor(lhs / rhs)` of reals: the remainder with the sign of `rhs`.

    Equals `%` in Python, NumPy (`np.remainder`) and torch, except that a zero remainder may have
    either sign. Division by zero is as for `fmod`.
    """
    left, right = broadcast_pair("remainder", lhs, rhs, REALS)
    rest = primitives.rem(left, right)
    wrong = _has_other_sign(rest, right)
    return primitives.select(wrong, primitives.add(rest, right), rest)


@functional
def floor_divide(lhs: Operand, rhs: Operand) -> Tensor:
    """`floor(lhs / rhs)` of reals, consistent with `remainder`: Python's `//`.

    A float divided by zero gives inf or NaN as `/` does; for integers that raises ExecutionError
    when it runs.
    """
    left, right = broadcast_pair("floor_divide", lhs, rhs, REALS)
    rest = primitives.rem(left, right)
    whole = primitives.div(primitives.sub(left, rest), right)
    lower = primitives.sub(whole, splat(1, left.dtype, left.shape))
    quotient = primitives.select(_has_other_sign(rest, right), lower, whole)
    if left.dtype.is_integer:
        return quotient
    # The quotient may be off by a rounding even if its exact value is an integer.
    zero = primitives.compare(right, splat(0, right.dtype, right.shape), "eq")
    rounded = primitives.round_nearest_even(quotient)
    exact = primitives.div(left, right)
    # A zero has the sign of the quotient, which the difference above does not have.
    nil = splat(0, left.dtype, left.shape)
    is_nil = primitives.compare(rounded, nil, "eq")
    rounded = primitives.select(is_nil, primitives.mul(exact, nil), rounded)
    return primitives.select(zero, exact, rounded)


@functional
def pow(lhs: Operand, rhs: Operand) -> Tensor:
    """`lhs ^ rhs` over their broadcast shape, as IEEE 754 `pow`, of floats or complex numbers.

    An integer tensor takes a Python int >= 0 on the right; the result is exact up to wrapping.
    """
    if isinstance(lhs, Tensor) and lhs.dtype.is_integer and isinstance(rhs, int):
        return _integer_power(lhs, rhs)
    return primitives.pow(*broadcast_pair("pow", lhs, rhs, INEXACT))


@functional
def clamp(x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """`min(max(x, low), high)` of reals over their broadcast shape; None means unbounded.

    NaN anywhere gives NaN, and `high` wins over a larger `low` (`torch.clamp`). UsageError without
    any bound.
    """
    require_dtype("clamp", REALS, x=x)
    if low is not None and high is not None:
        return primitives.clamp(*broadcast("clamp", x, low, high))
    if low is not None:
        return primitives.maximum(*broadcast_pair("clamp", x, low))
    if high is not None:
        return primitives.minimum(*broadcast_pair("clamp", x, high))
    raise UsageError("`clamp` needs `low`, `high`, or both")


def _logarithm(name: str, x: Tensor, base: int) -> Tensor:
    """Return `ln(x) / ln(base)`, computed wide enough that its two roundings rarely show in the
    type of x."""
    require_float(name, x=x)
    wide = converted(x, f64 if x.dtype.bits >= f32.bits else f32)
    scaled = primitives.mul(primitives.log(wide), splat(1 / math.log(base), wide.dtype, wide.shape))
    return converted(scaled, x.dtype)


def _has_other_sign(rest: Tensor, divisor: Tensor) -> Tensor:
    """i1: `rest` is nonzero and has the opposite sign of `divisor`."""
    zero = splat(0, rest.dtype, rest.shape)
    below = primitives.compare(rest, zero, "lt")
    apart = primitives.compare(below, primitives.compare(divisor, zero, "lt"), "ne")
    return primitives.bit_and(primitives.compare(rest, zero, "ne"), apart)


def _integer_power(base: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        raise UsageError(
            f"`pow` of `{base.type}` needs an exponent >= 0, got {exponent}",
            hint="`cast` the base to a floating-point type",
        )
    result: Tensor | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else primitives.mul(result, base)
        exponent >>= 1
        base = primitives.mul(base, base) if exponent else base
    return splat(1, base.dtype, base.shape) if result is None else result


# Comparisons, and the logic of their results.


@functional
def equal(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs == rhs` over their broadcast shape, of any element type; NaN equals nothing."""
    return primitives.compare(*broadcast_pair("equal", lhs, rhs), "eq")


@functional
def not_equal(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs != rhs` over their broadcast shape, of any element type; true with a NaN."""
    return primitives.compare(*broadcast_pair("not_equal", lhs, rhs), "ne")


@functional
def less(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs < rhs` of reals or i1 over their broadcast shape; false with a NaN."""
    return primitives.compare(*broadcast_pair("less", lhs, rhs, ORDERED), "lt")


@functional
def less_equal(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs <= rhs` of reals or i1 over their broadcast shape; false with a NaN."""
    return primitives.compare(*broadcast_pair("less_equal", lhs, rhs, ORDERED), "le")


@functional
def greater(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs > rhs` of reals or i1 over their broadcast shape; false with a NaN."""
    return primitives.compare(*broadcast_pair("greater", lhs, rhs, ORDERED), "gt")


@functional
def greater_equal(lhs: Operand, rhs: Operand) -> Tensor:
    """i1: `lhs >= rhs` of reals or i1 over their broadcast shape; false with a NaN."""
    return primitives.compare(*broadcast_pair("greater_equal", lhs, rhs, ORDERED), "ge")


@functional
def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where `condition` (i1) holds, else `y`, over the broadcast shape of all three.

    `x` and `y` have one element type, any; one of them may be a number. Elements not chosen have no
    influence, even if NaN (`np.where`).
    """
    require_dtype("where", (i1,), condition=condition)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        raise UsageError(
            f"`where` needs a tensor for `x` or `y`, got {x!r} and {y!r}",
            hint="`functionals.full` makes a tensor of a number",
        )
    left, right = broadcast_pair("where", x, y)
    shape = broadcast_shapes([condition.shape, left.shape], "`where`")
    return primitives.select(expand(condition, shape), expand(left, shape), expand(right, shape))


@functional
def logical_and(lhs: Operand, rhs: Operand) -> Tensor:
    """Both of two i1 over their broadcast shape."""
    return primitives.bit_and(*broadcast_pair("logical_and", lhs, rhs, (i1,)))


@functional
def logical_or(lhs: Operand, rhs: Operand) -> Tensor:
    """Either of two i1 over their broadcast shape."""
    return primitives.bit_or(*broadcast_pair("logical_or", lhs, rhs, (i1,)))


@functional
def logical_xor(lhs: Operand, rhs: Operand) -> Tensor:
    """Exactly one of two i1 over their broadcast shape."""
    return primitives.bit_xor(*broadcast_pair("logical_xor", lhs, rhs, (i1,)))


@functional
def logical_not(x: Tensor) -> Tensor:
    """True where the i1 `x` is false."""
    require_dtype("logical_not", (i1,), x=x)
    return primitives.logical_not(x)


@functional
def is_finite(x: Tensor) -> Tensor:
    """i1: neither infinite nor NaN, of floats or complex numbers."""
    require_dtype("is_finite", INEXACT, x=x)
    return primitives.is_finite(x)


@functional
def is_nan(x: Tensor) -> Tensor:
    """i1: NaN (for complex numbers in either part), of floats or complex numbers."""
    require_dtype("is_nan", INEXACT, x=x)
    return primitives.compare(x, x, "ne")


@functional
def is_inf(x: Tensor) -> Tensor:
    """i1: infinite, of floats of either sign."""
    require_dtype("is_inf", FLOATS, x=x)
    size = primitives.abs(x)
    return primitives.compare(size, splat(math.inf, x.dtype, x.shape), "eq")
