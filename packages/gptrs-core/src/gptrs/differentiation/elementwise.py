"""Derivative rules of elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.rules import RULES, Cotangents, Rule, Step, filled, rule, where, zeros
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as e


def _slope(op: type[Op], derivative: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Register a unary op: `derivative(operand, result, cotangent)` returns the operand's
    cotangent."""

    def backward(step: Step[Op], cotangents: Cotangents) -> Cotangents:
        (g,) = cotangents
        assert g is not None
        return [derivative(step.operands[0], step.results[0], g)]

    RULES[op] = Rule(backward)


def _of_erf(x: Tensor, _: Tensor, g: Tensor) -> Tensor:
    density = p.exp(p.neg(p.mul(x, x)))
    return p.mul(g, p.mul(filled(2 / math.sqrt(math.pi), x), density))


def _of_rsqrt(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    return p.mul(g, p.mul(filled(-0.5, x), p.mul(y, p.mul(y, y))))


_slope(e.Neg, lambda x, y, g: p.neg(g))
_slope(e.Abs, lambda x, y, g: p.mul(g, p.sign(x)))  # 0 at 0
_slope(e.Exp, lambda x, y, g: p.mul(g, y))
_slope(e.Expm1, lambda x, y, g: p.mul(g, p.add(y, filled(1, y))))
_slope(e.Log, lambda x, y, g: p.div(g, x))
_slope(e.Log1p, lambda x, y, g: p.div(g, p.add(x, filled(1, x))))
# Infinite at 0, as in torch and JAX; a subgradient of 0 would hide the fault of the caller.
_slope(e.Sqrt, lambda x, y, g: p.div(g, p.add(y, y)))
_slope(e.Rsqrt, _of_rsqrt)
_slope(e.Reciprocal, lambda x, y, g: p.neg(p.mul(g, p.mul(y, y))))
_slope(e.Sin, lambda x, y, g: p.mul(g, p.cos(x)))
_slope(e.Cos, lambda x, y, g: p.neg(p.mul(g, p.sin(x))))
# From the result, which is there: the operand would need another exponential.
_slope(e.Tanh, lambda x, y, g: p.mul(g, p.sub(filled(1, y), p.mul(y, y))))
_slope(e.Logistic, lambda x, y, g: p.mul(g, p.mul(y, p.sub(filled(1, y), y))))
_slope(e.Erf, _of_erf)


@rule(e.Add)
def _add(step: Step[e.Add], g: Tensor) -> Cotangents:
    return [g, g]


@rule(e.Sub)
def _sub(step: Step[e.Sub], g: Tensor) -> Cotangents:
    return [g, p.neg(g)]


@rule(e.Mul)
def _mul(step: Step[e.Mul], g: Tensor) -> Cotangents:
    lhs, rhs = step.operands
    return [p.mul(g, rhs), p.mul(g, lhs)]


@rule(e.Div)
def _div(step: Step[e.Div], g: Tensor) -> Cotangents:
    share = p.div(g, step.operands[1])
    # -g/b * y reuses the quotient, where -g a/b^2 would overflow for large b.
    return [share, p.neg(p.mul(share, step.results[0]))]


@rule(e.Rem)
def _rem(step: Step[e.Rem], g: Tensor) -> Cotangents:
    # The quotient rounded toward zero, as the remainder has the sign of the dividend.
    ratio = p.div(*step.operands)
    negative = p.compare(ratio, zeros(ratio), "lt")
    return [g, p.neg(p.mul(g, p.select(negative, p.ceil(ratio), p.floor(ratio))))]


@rule(e.Pow)
def _pow(step: Step[e.Pow], g: Tensor) -> Cotangents:
    """`p x^(p-1)`, 0 for p = 0; and `y log x`, 0 for x = 0 and p >= 0."""
    x, power = step.operands
    nil, one = zeros(x), filled(1, x)
    # 0 * 0^-1 would be NaN, so select before the power and after the product.
    flat = p.compare(power, nil, "eq")
    lower = p.pow(x, p.select(flat, one, p.sub(power, one)))
    by_base = p.select(flat, nil, p.mul(g, p.mul(power, lower)))
    at_zero = p.bit_and(p.compare(x, nil, "eq"), p.compare(power, nil, "ge"))
    logarithm = p.log(p.select(at_zero, one, x))
    by_power = p.select(at_zero, nil, p.mul(g, p.mul(step.results[0], logarithm)))
    return [by_base, by_power]


@rule(e.Maximum, e.Minimum)
def _extreme(step: Step[Op], g: Tensor) -> Cotangents:
    """Pass the cotangent to the chosen operand, half to each if they are equal, and to both at
    NaN."""
    lhs, rhs = step.operands
    # Comparisons with NaN are false, so that neither side is cut off.
    worse = "lt" if isinstance(step.op, e.Maximum) else "gt"
    share = p.select(p.compare(lhs, rhs, "eq"), p.mul(g, filled(0.5, g)), g)
    nil = zeros(g)
    return [
        p.select(p.compare(lhs, rhs, worse), nil, share),
        p.select(p.compare(rhs, lhs, worse), nil, share),
    ]


@rule(e.Select)
def _select(step: Step[e.Select], g: Tensor) -> Cotangents:
    pred, nil = step.operands[0], zeros(g)
    # Selected, never multiplied by a mask: 0 * inf in the branch not taken would be NaN.
    return [None, p.select(pred, g, nil), p.select(pred, nil, g)]


@rule(e.Clamp)
def _clamp(step: Step[e.Clamp], g: Tensor) -> Cotangents:
    """Pass the cotangent to `x` within the bounds, inclusive, else to the bound that it exceeds."""
    x, low, high = step.operands
    # As torch's `clamp_backward_min_max`: the result is `high` where the bounds are crossed.
    ordered = p.compare(low, high, "lt")
    inside = p.bit_and(p.compare(x, low, "ge"), p.compare(x, high, "le"))
    below = p.bit_and(p.compare(x, low, "lt"), ordered)
    above = p.bit_or(p.compare(x, high, "gt"), p.compare(high, low, "lt"))
    return [where(inside, g), where(below, g), where(above, g)]


@rule(e.Cast)
def _cast(step: Step[e.Cast], g: Tensor) -> Cotangents:
    (x,) = step.operands
    # Rounding has no derivative of its own: the cotangent passes straight through.
    return [p.cast(g, x.dtype) if x.dtype.is_float else None]
