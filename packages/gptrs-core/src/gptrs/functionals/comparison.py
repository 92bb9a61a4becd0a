"""Comparisons, and the logic of their results."""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    INEXACT,
    ORDERED,
    Operand,
    broadcast_pair,
    expand,
    require_dtype,
    splat,
)
from gptrs.ir.dtypes import FLOATS, i1
from gptrs.ir.shapes import broadcast_shapes


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

    `x` and `y` are of one element type, any; one of them may be a number. The elements
    that are not chosen have no influence, NaN included (`np.where`).
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
    """One of two i1 over their broadcast shape, not both."""
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
