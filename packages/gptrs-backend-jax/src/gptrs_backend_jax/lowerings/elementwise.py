"""Lowerings of the ops that compute each element from those at the same position."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from jax import Array, lax

from gptrs.api.programs import DType, Op, dtypes, ops
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import (
    NUMBERS,
    ORDERED,
    REALS,
    held,
    narrow,
    order_keys,
    widen,
    wrap,
)
from gptrs_backend_jax.lowering import TABLE, LoweringContext, unfused

Function = Callable[..., Array]
elementwise = ops.elementwise


def computes(op: type[Op]) -> Callable[[Function], Function]:
    """Return a decorator that registers a function of widened arrays as the lowering of `op`.

    It is registered for every element type that the op takes; its result is narrowed to that type.
    """

    def register(function: Function) -> Function:
        def lowering(_: Op, ctx: LoweringContext, *operands: Array) -> Array:
            dtype = ctx.operands[0].dtype
            return narrow(dtype, function(*(widen(dtype, x) for x in operands)))

        kinds: tuple[str, ...] = getattr(op, "kinds", ())
        TABLE.register(op, dtypes=[d for d in dtypes.ALL if d.kind in kinds])(lowering)
        return function

    return register


def larger(dtype: DType, lhs: Array, rhs: Array) -> Array:
    """Return the larger of held elements, NaN if either is; XLA would take subnormals for 0."""
    if not dtype.is_float:
        return lax.max(lhs, rhs)
    (left, _), (right, _) = order_keys(dtype, lhs), order_keys(dtype, rhs)
    return lax.select(left >= right, lhs, rhs)


def smaller(dtype: DType, lhs: Array, rhs: Array) -> Array:
    """Return the smaller of held elements, NaN if either is."""
    if not dtype.is_float:
        return lax.min(lhs, rhs)
    (left, left_nan), (right, right_nan) = order_keys(dtype, lhs), order_keys(dtype, rhs)
    assert left_nan is not None, "a float has NaN"
    assert right_nan is not None, "a float has NaN"
    return lax.select(((left <= right) | left_nan) & ~right_nan, lhs, rhs)


def _round(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


PLAIN: dict[type[Op], Function] = {
    elementwise.Neg: lax.neg,
    elementwise.Exp: lax.exp,
    elementwise.Expm1: lax.expm1,
    elementwise.Log: lax.log,
    elementwise.Sqrt: lax.sqrt,
    elementwise.Rsqrt: lax.rsqrt,
    elementwise.Sin: lax.sin,
    elementwise.Cos: lax.cos,
    elementwise.Tanh: lax.tanh,
    elementwise.Logistic: lax.logistic,
    elementwise.Erf: lax.erf,
    elementwise.Floor: lax.floor,
    elementwise.Ceil: lax.ceil,
    elementwise.RoundNearestEven: _round,
    elementwise.Not: lax.bitwise_not,
    elementwise.Add: lax.add,
    elementwise.Sub: lax.sub,
    elementwise.Mul: lax.mul,
    elementwise.And: lax.bitwise_and,
    elementwise.Or: lax.bitwise_or,
    elementwise.Xor: lax.bitwise_xor,
}
"""The ops that one function of `jax.lax` computes as PTIR defines them."""

for _op, _function in PLAIN.items():
    computes(_op)(_function)


@TABLE.register(elementwise.Maximum, elementwise.Minimum, dtypes=ORDERED)
def extreme(op: Op, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Return the larger, or the smaller, of each two elements."""
    choose = larger if isinstance(op, elementwise.Maximum) else smaller
    return choose(ctx.result.dtype, lhs, rhs)


@TABLE.register(elementwise.Sign, dtypes=REALS)
def sign(_: Op, ctx: LoweringContext, x: Array) -> Array:
    """Return -1, 0 or 1; keep the sign of a zero, and NaN. Subnormal numbers are no zeros."""
    keys, is_nan = order_keys(ctx.result.dtype, x)
    if is_nan is None:
        return lax.sign(x)
    one = lax.full_like(x, 1)
    signed = lax.select(keys < 0, -one, one)
    return lax.select(is_nan | (keys == 0), x, signed)


@computes(elementwise.Log1p)
def log1p(x: Array) -> Array:
    """Return `log(1 + x)`; of f64 by Kahan's formula, as XLA is off by up to 49 units there."""
    if x.dtype != np.float64:
        return lax.log1p(x)
    above = unfused(1 + x)  # else XLA takes `(1 + x) - 1` for `x`
    rounding = x / (above - 1)  # what `1 + x` lost, relative to `x`
    found = lax.log(above) * rounding
    is_plain = (above == 1) | (x == np.inf)
    return lax.select(is_plain, x, found)


@computes(elementwise.Abs)
def absolute(x: Array) -> Array:
    """Return `|x|`; unsigned integers, which lax refuses, unchanged."""
    return x if np.issubdtype(x.dtype, np.unsignedinteger) else lax.abs(x)


@computes(elementwise.Reciprocal)
def reciprocal(x: Array) -> Array:
    """Return `1 / x`."""
    return lax.div(lax.full_like(x, 1), x)


@computes(elementwise.Pow)
def power(lhs: Array, rhs: Array) -> Array:
    """Return `lhs ^ rhs`, where `x^0` and `1^y` are 1 even if the other operand is NaN."""
    is_one = (rhs == 0) | (lhs == 1)
    return lax.select(is_one, lax.full_like(lhs, 1), lax.pow(_without_subnormals(lhs), rhs))


def _without_subnormals(base: Array) -> Array:
    """Return a base with 0 for subnormal numbers: XLA's `pow` takes their bits for others."""
    if not np.issubdtype(base.dtype, np.floating):
        return base
    tiny = lax.lt(lax.abs(base), lax.full_like(base, np.finfo(base.dtype).tiny))
    return lax.select(tiny, lax.mul(base, lax.full_like(base, 0)), base)


@TABLE.register(elementwise.Div, elementwise.Rem, dtypes=dtypes.INTEGERS)
def divide_integers(op: Op, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Divide toward zero; division by zero is an execution error."""
    is_zero = rhs == 0
    ctx.walk.check(is_zero, rhs, f"`{op.name}` of integers by zero")
    divisor = lax.select(is_zero, lax.full_like(rhs, 1), rhs)
    divide = lax.div if isinstance(op, elementwise.Div) else lax.rem
    return wrap(ctx.result.dtype, divide(lhs, divisor))


@TABLE.register(elementwise.Div, dtypes=[d for d in NUMBERS if not d.is_integer])
def divide(_: Op, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Divide as IEEE 754 does."""
    dtype = ctx.result.dtype
    return narrow(dtype, lax.div(widen(dtype, lhs), widen(dtype, rhs)))


@TABLE.register(elementwise.Rem, dtypes=dtypes.FLOATS)
def remainder(_: Op, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Return C's `fmod`: exact, with the sign of `lhs`."""
    dtype = ctx.result.dtype
    return narrow(dtype, lax.rem(widen(dtype, lhs), widen(dtype, rhs)))


@TABLE.register(
    elementwise.ShiftLeft,
    elementwise.ShiftRightArithmetic,
    elementwise.ShiftRightLogical,
    dtypes=dtypes.INTEGERS,
)
def shift(op: Op, ctx: LoweringContext, x: Array, amount: Array) -> Array:
    """Shift; amounts outside [0, width) leave entering bits only."""
    dtype = ctx.result.dtype
    is_signed = dtype.kind == "signed"
    outside = amount >= dtype.bits
    if is_signed:
        outside = outside | (amount < 0)
    within = lax.select(outside, lax.full_like(amount, 0), amount)
    if isinstance(op, elementwise.ShiftRightArithmetic) and is_signed:
        within = lax.select(outside, lax.full_like(amount, dtype.bits - 1), amount)
        return lax.shift_right_arithmetic(x, within)
    if isinstance(op, elementwise.ShiftLeft):
        shifted = lax.shift_left(x, within)
    else:
        shifted = lax.shift_right_logical(x & 15 if dtype.bits == 4 else x, within)
    return lax.select(outside, lax.full_like(x, 0), wrap(dtype, shifted))


COMPARE: dict[str, Function] = {
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "ne": operator.ne,
}


@TABLE.register(elementwise.Compare, dtypes=dtypes.ALL)
def compare(op: elementwise.Compare, ctx: LoweringContext, lhs: Array, rhs: Array) -> Array:
    """Compare elements; floats by their bits, in the order of IEEE 754."""
    dtype = ctx.operands[0].dtype
    if dtype.is_complex:
        return _compare_complex(op, lhs, rhs)
    (left, left_nan), (right, right_nan) = order_keys(dtype, lhs), order_keys(dtype, rhs)
    found = COMPARE[op.direction](left, right)
    if left_nan is None or right_nan is None:
        return found
    is_nan = left_nan | right_nan
    return found | is_nan if op.direction == "ne" else found & ~is_nan


def _compare_complex(op: elementwise.Compare, lhs: Array, rhs: Array) -> Array:
    real, imag = (COMPARE[op.direction](part(lhs), part(rhs)) for part in (lax.real, lax.imag))
    return real | imag if op.direction == "ne" else real & imag


@TABLE.register(elementwise.IsFinite, dtypes=[d for d in NUMBERS if not d.is_integer])
def is_finite(_: Op, ctx: LoweringContext, x: Array) -> Array:
    """Return whether elements are neither infinite nor NaN."""
    dtype = ctx.operands[0].dtype
    if dtype.is_complex:
        return lax.is_finite(lax.real(x)) & lax.is_finite(lax.imag(x))
    return lax.is_finite(widen(dtype, x))


@TABLE.register(elementwise.Select, dtypes=dtypes.ALL)
def select(_: Op, ctx: LoweringContext, predicate: Array, on_true: Array, on_false: Array) -> Array:
    """Take each element of `on_true` where the predicate holds, else of `on_false`."""
    return lax.select(predicate, on_true, on_false)


@TABLE.register(elementwise.Clamp, dtypes=REALS)
def clamp(_: Op, ctx: LoweringContext, x: Array, low: Array, high: Array) -> Array:
    """Return `minimum(maximum(x, low), high)`."""
    dtype = ctx.result.dtype
    return smaller(dtype, larger(dtype, x, low), high)


@TABLE.register(elementwise.Cast, dtypes=dtypes.ALL)
def cast(op: elementwise.Cast, ctx: LoweringContext, x: Array) -> Array:
    """Convert by the rules of PTIR."""
    return convert(x, ctx.operands[0].dtype, op.dtype)


@TABLE.register(elementwise.Bitcast, dtypes=NUMBERS)
def bitcast(op: elementwise.Bitcast, ctx: LoweringContext, x: Array) -> Array:
    """Reinterpret the bits; a 4-bit integer is sign- or zero-extended in its byte."""
    source, target = ctx.operands[0].dtype, op.dtype
    if source is target:
        return x
    if target.bits == 4:
        return wrap(target, lax.convert_element_type(x, held(target)))
    if source.is_complex:
        halves = [lax.bitcast_convert_type(part, np.uint32) for part in (lax.real(x), lax.imag(x))]
        low, high = (lax.convert_element_type(half, np.uint64) for half in halves)
        return lax.bitcast_convert_type(low | (high << 32), target.numpy)
    if target.is_complex:
        whole = lax.bitcast_convert_type(x, np.uint64)
        halves = [lax.convert_element_type(part, np.uint32) for part in (whole, whole >> 32)]
        real, imag = (lax.bitcast_convert_type(half, np.float32) for half in halves)
        return lax.complex(real, imag)
    return lax.bitcast_convert_type(x, target.numpy)


@TABLE.register(elementwise.StopGradient, dtypes=dtypes.ALL)
def stop_gradient(_: Op, ctx: LoweringContext, x: Array) -> Array:
    """Return the operand itself."""
    return x
