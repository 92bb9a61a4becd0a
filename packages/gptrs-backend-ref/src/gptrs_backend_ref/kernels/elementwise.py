"""Kernels of the ops that compute each element of the result from those at the same position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_backend_ref.numerics import computing_type, convert, narrow, widen, wrap
from gptrs_backend_ref.table import TABLE

Function = Callable[..., np.ndarray]

REALS = dtypes.INTEGERS + dtypes.FLOATS


def computes(op: type[ops.Unary] | type[ops.Binary]) -> Callable[[Function], Function]:
    """Return a decorator that registers a function of widened arrays as the kernel of `op`.

    It is registered for every element type that the op takes; its result is narrowed to that type.
    """

    def register(function: Function) -> Function:
        def kernel(_: Op, *operands: np.ndarray) -> np.ndarray:
            dtype = dtypes.from_numpy(operands[0].dtype)
            return narrow(function(*map(widen, operands)), dtype)

        TABLE.register(op, dtypes=[d for d in dtypes.ALL if d.kind in op.kinds])(kernel)
        return function

    return register


PLAIN: dict[type[ops.Unary] | type[ops.Binary], Function] = {
    ops.Neg: np.negative,
    ops.Abs: np.absolute,
    ops.Exp: np.exp,
    # NumPy's expm1 and log1p of complex numbers near 0 lose digits.
    ops.Expm1: special.expm1,
    ops.Log: np.log,
    ops.Log1p: special.log1p,
    ops.Sqrt: np.sqrt,
    ops.Sin: np.sin,
    ops.Cos: np.cos,
    ops.Tanh: np.tanh,
    ops.Erf: special.erf,
    ops.Floor: np.floor,
    ops.Ceil: np.ceil,
    ops.RoundNearestEven: np.rint,
    ops.Not: np.invert,
    ops.Add: np.add,
    ops.Sub: np.subtract,
    ops.Mul: np.multiply,
    ops.Maximum: np.maximum,
    ops.Minimum: np.minimum,
    ops.And: np.bitwise_and,
    ops.Or: np.bitwise_or,
    ops.Xor: np.bitwise_xor,
}
"""The ops that one function of NumPy or SciPy computes as PTIR defines them."""

for _op, _function in PLAIN.items():
    computes(_op)(_function)


@computes(ops.Sign)
def sign(x: np.ndarray) -> np.ndarray:
    """Return -1, 0 or 1; unlike NumPy, keep the sign of a zero."""
    return np.where(x == 0, x, np.sign(x))


@computes(ops.Rsqrt)
def rsqrt(x: np.ndarray) -> np.ndarray:
    """Return `1 / sqrt(x)`."""
    return np.reciprocal(np.sqrt(x))


@computes(ops.Reciprocal)
def reciprocal(x: np.ndarray) -> np.ndarray:
    """Return `1 / x`."""
    return np.reciprocal(x)


@computes(ops.Logistic)
def logistic(x: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + e^-x)`, below 0 as `e^x / (1 + e^x)` so that `exp` never overflows."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


@computes(ops.Pow)
def pow_(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return `lhs ^ rhs`, where `x^0` and `1^y` are 1 even if the other operand is NaN."""
    found = np.where((rhs == 0) | (lhs == 1), 1, np.power(lhs, rhs))
    if not np.iscomplexobj(lhs):
        # NumPy takes a root for an exponent of 0.5, which is no power at -0 and at -infinity.
        found = np.where((rhs == 0.5) & np.isin(lhs, (0, -np.inf)), np.abs(lhs), found)
    return found.astype(lhs.dtype, copy=False)


@TABLE.register(ops.Div, dtypes=dtypes.INTEGERS)
def divide_integers(op: ops.Div, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Divide toward zero: `lhs` less its remainder is a multiple of `rhs`."""
    _require_nonzero(op, rhs)
    a, b = widen(lhs), widen(rhs)
    return narrow(np.floor_divide(a - _remainder(a, b), b), dtypes.from_numpy(lhs.dtype))


@TABLE.register(ops.Rem, dtypes=dtypes.INTEGERS)
def remainder_of_integers(op: ops.Rem, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return the remainder of truncating division."""
    _require_nonzero(op, rhs)
    return narrow(_remainder(widen(lhs), widen(rhs)), dtypes.from_numpy(lhs.dtype))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Division by -1 leaves nothing, as by 1, but traps on some processors for the least integer.
    divisor = b if b.dtype.kind == "u" else np.where(b == -1, 1, b).astype(b.dtype)
    return np.fmod(a, divisor)


def _require_nonzero(op: Op, rhs: np.ndarray) -> None:
    zeros = np.argwhere(widen(rhs) == 0)
    if len(zeros):
        where = [int(position) for position in zeros[0]]
        raise ExecutionError(f"`{op.name}` of integers by zero, at position {where}")


@TABLE.register(ops.Div, dtypes=[d for d in dtypes.ALL if d.is_float or d.is_complex])
def divide(_: ops.Div, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Divide as IEEE 754 does."""
    return narrow(np.true_divide(widen(lhs), widen(rhs)), dtypes.from_numpy(lhs.dtype))


@TABLE.register(ops.Rem, dtypes=dtypes.FLOATS)
def remainder(_: ops.Rem, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return C's `fmod`: exact, with the sign of `lhs`."""
    return narrow(np.fmod(widen(lhs), widen(rhs)), dtypes.from_numpy(lhs.dtype))


@TABLE.register(ops.ShiftLeft, dtypes=dtypes.INTEGERS)
def shift_left(_: ops.ShiftLeft, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Shift up; zeros enter."""
    dtype, x = dtypes.from_numpy(lhs.dtype), widen(lhs)
    amount, inside = _shift(rhs, dtype.bits)
    return narrow(np.where(inside, np.left_shift(x, amount), x.dtype.type(0)), dtype)


@TABLE.register(ops.ShiftRightArithmetic, dtypes=dtypes.INTEGERS)
def shift_right_arithmetic(
    _: ops.ShiftRightArithmetic, lhs: np.ndarray, rhs: np.ndarray
) -> np.ndarray:
    """Shift down; copies of the sign bit enter, zeros for an unsigned type."""
    dtype, x = dtypes.from_numpy(lhs.dtype), widen(lhs)
    amount, inside = _shift(rhs, dtype.bits)
    # A shift by the width or more leaves entering bits only: the sign bit of a signed integer.
    gone = np.right_shift(x, x.dtype.type(dtype.bits - 1))
    beyond = gone if dtype.kind == "signed" else np.zeros_like(x)
    return narrow(np.where(inside, np.right_shift(x, amount), beyond), dtype)


@TABLE.register(ops.ShiftRightLogical, dtypes=dtypes.INTEGERS)
def shift_right_logical(_: ops.ShiftRightLogical, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Shift down; zeros enter, as in an unsigned integer with the same bits."""
    dtype, x = dtypes.from_numpy(lhs.dtype), widen(lhs)
    amount, inside = _shift(rhs, dtype.bits)
    bits = wrap(x, dtypes.by_name(f"ui{dtype.bits}"))
    shifted = np.right_shift(bits, amount.astype(bits.dtype))
    return narrow(np.where(inside, shifted, bits.dtype.type(0)).astype(x.dtype), dtype)


def _shift(rhs: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the amounts, 0 where outside [0, width), and a mask of those inside."""
    amount = widen(rhs)
    inside = (amount >= 0) & (amount < width)
    return np.where(inside, amount, amount.dtype.type(0)), np.asarray(inside)


COMPARE: dict[str, Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "ne": np.not_equal,
}


@TABLE.register(ops.Compare, dtypes=dtypes.ALL)
def compare(op: ops.Compare, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Compare elements; floats as IEEE 754 does."""
    return np.asarray(COMPARE[op.direction](widen(lhs), widen(rhs)))


@TABLE.register(ops.IsFinite, dtypes=[d for d in dtypes.ALL if d.is_float or d.is_complex])
def is_finite(_: ops.IsFinite, x: np.ndarray) -> np.ndarray:
    """Return whether elements are neither infinite nor NaN."""
    return np.asarray(np.isfinite(widen(x)))


@TABLE.register(ops.Select, dtypes=dtypes.ALL)
def select(
    _: ops.Select, pred: np.ndarray, on_true: np.ndarray, on_false: np.ndarray
) -> np.ndarray:
    """Take each element of `on_true` where `pred` holds, else of `on_false`."""
    return np.where(pred, on_true, on_false)


@TABLE.register(ops.Clamp, dtypes=REALS)
def clamp(_: ops.Clamp, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return `minimum(maximum(x, low), high)`."""
    bounded = np.minimum(np.maximum(widen(x), widen(low)), widen(high))
    return narrow(bounded, dtypes.from_numpy(x.dtype))


@TABLE.register(ops.Cast, dtypes=dtypes.ALL)
def cast(op: ops.Cast, x: np.ndarray) -> np.ndarray:
    """Convert by the rules of PTIR."""
    return convert(x, op.dtype)


@TABLE.register(ops.Bitcast, dtypes=[d for d in dtypes.ALL if not d.is_bool])
def bitcast(op: ops.Bitcast, x: np.ndarray) -> np.ndarray:
    """Reinterpret the bits; a 4-bit integer is sign- or zero-extended in its byte."""
    if op.dtype.bits == 4:
        return narrow(widen(x).view(computing_type(op.dtype)), op.dtype)
    return x.view(op.dtype.numpy)


@TABLE.register(ops.StopGradient, dtypes=dtypes.ALL)
def stop_gradient(_: ops.StopGradient, x: np.ndarray) -> np.ndarray:
    """Return the operand itself."""
    return x
