"""Definitions of elementwise ops, as functions of Python numbers: the oracle of every kernel.

A function accepts the kinds of numbers that its op accepts: bool, int, float (double precision) or
complex. Integers do not wrap here. A NaN operand gives NaN unless the op says otherwise.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any, Final

Definition = Callable[..., complex]
INF: Final = math.inf
NAN: Final = math.nan


def _by_kind(real: Callable[..., float], complex_: Callable[..., complex]) -> Definition:
    """Return a function that applies `complex_` to complex numbers and `real` to all others."""

    def compute(*operands: Any) -> float | complex:
        return complex_(*operands) if isinstance(operands[0], complex) else real(*operands)

    return compute


def _overflowing(function: Callable[[float], float]) -> Callable[[float], float]:
    """Wrap `function` to return infinity where Python raises OverflowError."""

    def compute(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INF

    return compute


def _periodic(function: Callable[[float], float]) -> Callable[[float], float]:
    """Wrap `function` to return NaN for infinities, where Python raises ValueError."""
    return lambda x: function(x) if math.isfinite(x) else NAN


def _to_integral(function: Callable[[float], float]) -> Callable[[float], float]:
    """Wrap `function`, which returns an integer, to return a float that keeps the sign of a
    zero."""
    return lambda x: math.copysign(function(x), x) if math.isfinite(x) else x


def sign(x: float) -> float:
    """-1, 0 or 1; keeps NaN and the sign of zeros."""
    return x if x == 0 or x != x else type(x)(math.copysign(1, x))


def _log(x: float) -> float:
    """The natural logarithm."""
    return math.log(x) if x > 0 else -INF if x == 0 else NAN


def _log1p(x: float) -> float:
    """`log(1 + x)`."""
    return math.log1p(x) if x > -1 else -INF if x == -1 else NAN


def _sqrt(x: float) -> float:
    """The square root."""
    return math.sqrt(x) if x >= 0 else NAN


def _rsqrt(x: float) -> float:
    """`1 / sqrt(x)`."""
    return 1 / math.sqrt(x) if x > 0 else math.copysign(INF, x) if x == 0 else NAN


def _reciprocal(x: float) -> float:
    """`1 / x`."""
    return 1 / x if x else math.copysign(INF, x)


def logistic(x: float) -> float:
    """`1 / (1 + e^-x)`; where `e^-x` overflows it is `e^x`."""
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def complement(x: int) -> int:
    """`not x` of bool, else `~x`."""
    return not x if isinstance(x, bool) else ~x


def quotient(x: int, y: int) -> int:
    """`x / y` toward zero, where Python's `//` rounds down."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _divide(x: float, y: float) -> float:
    """`x / y` per IEEE 754 for floats; truncated toward zero for integers."""
    if isinstance(x, int) and isinstance(y, int):
        return quotient(x, y)
    if y == 0:
        return NAN if x == 0 or x != x else math.copysign(INF, x) * math.copysign(1, y)
    return x / y


def remainder(x: float, y: float) -> float:
    """C's `fmod`, the remainder with the sign of `x`."""
    if isinstance(x, int) and isinstance(y, int):
        return x - y * quotient(x, y)
    return math.fmod(x, y) if math.isfinite(x) and y else NAN


def _power(x: float, y: float) -> float:
    """IEEE 754 `pow`: 1 for `x^0` and `1^y`, even if the other operand is NaN."""
    odd = math.isfinite(y) and y % 2 == 1
    try:
        return math.pow(x, y)
    except OverflowError:
        return -INF if x < 0 and odd else INF
    except ValueError:  # a fractional power of a negative base, or a negative power of zero
        if x == 0:
            return math.copysign(INF, x) if odd else INF
        return NAN


def maximum(x: float, y: float) -> float:
    """The larger, NaN if either is."""
    return NAN if x != x or y != y else max(x, y)


def minimum(x: float, y: float) -> float:
    """The smaller, NaN if either is."""
    return NAN if x != x or y != y else min(x, y)


def bit_and(x: int, y: int) -> int:
    """Bitwise and; logical of bool."""
    return x & y


def bit_or(x: int, y: int) -> int:
    """Bitwise or; logical of bool."""
    return x | y


def bit_xor(x: int, y: int) -> int:
    """Bitwise exclusive or; logical of bool."""
    return x ^ y


def _complex_expm1(z: complex) -> complex:
    return cmath.exp(z) - 1


def _complex_log1p(z: complex) -> complex:
    return cmath.log(1 + z)


def _complex_rsqrt(z: complex) -> complex:
    return 1 / cmath.sqrt(z)


def _complex_reciprocal(z: complex) -> complex:
    return 1 / z


def _complex_divide(x: complex, y: complex) -> complex:
    return x / y


def _complex_power(x: complex, y: complex) -> complex:
    return x**y


exp = _by_kind(_overflowing(math.exp), cmath.exp)
expm1 = _by_kind(_overflowing(math.expm1), _complex_expm1)
log = _by_kind(_log, cmath.log)
log1p = _by_kind(_log1p, _complex_log1p)
sqrt = _by_kind(_sqrt, cmath.sqrt)
rsqrt = _by_kind(_rsqrt, _complex_rsqrt)
reciprocal = _by_kind(_reciprocal, _complex_reciprocal)
sin = _by_kind(_periodic(math.sin), cmath.sin)
cos = _by_kind(_periodic(math.cos), cmath.cos)
tanh = _by_kind(math.tanh, cmath.tanh)
divide = _by_kind(_divide, _complex_divide)
power = _by_kind(_power, _complex_power)
floor = _to_integral(math.floor)
ceil = _to_integral(math.ceil)
round_nearest_even = _to_integral(round)
