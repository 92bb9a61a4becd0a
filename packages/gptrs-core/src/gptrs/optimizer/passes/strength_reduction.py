"""Puts an op that takes less time in the place of one that computes the same.

It depends on the numbers in a program whether it can: patterns are matched before.
"""

from __future__ import annotations

import math

import numpy as np

from gptrs.ir.literal import Literal
from gptrs.ir.ops.elementwise import Div, Mul
from gptrs.ir.program import Value
from gptrs.optimizer.constants import emit_splat, splat_value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

div = calls(Div)
x = Operand("x")
y = Operand("y")


@rewrite(div(x, y))
def div_by_power_of_two(m: Match, emit: Emitter) -> Value | Declined:
    """div(x, 2^k) -> mul(x, 2^-k) of floats

    Both are the same number before they are rounded, and multiplication takes less time.
    """
    dtype = m.type.dtype
    if not dtype.is_float:
        return Declined(f"{dtype} has no exact reciprocals")
    divisor = splat_value(m, m[y])
    if divisor is None:
        return Declined("the divisor is not known to be the same everywhere")
    reciprocal = _exact_reciprocal(divisor)
    if reciprocal is None:
        exact = f"{divisor.array} has no reciprocal that is normal and exact in {dtype}"
        return Declined(exact)
    return emit(Mul(), m[x], emit_splat(emit, reciprocal, m.type))


_EXPONENTS = {
    "f8e4m3": (-6, 8),
    "f8e5m2": (-14, 15),
    "bf16": (-126, 127),
    "f16": (-14, 15),
    "f32": (-126, 127),
    "f64": (-1022, 1023),
}
"""Of the least and the greatest power of two that is a normal number of each float type."""


def _exact_reciprocal(number: Literal) -> Literal | None:
    """Return `1 / number` if that is a normal power of two."""
    dtype = number.type.dtype
    significand, exponent = math.frexp(float(number.array.astype(np.float64)))
    least, greatest = _EXPONENTS[dtype.name]
    # The number is 0.5 * 2^exponent; frexp gives infinities and NaN back as they are.
    if abs(significand) != 0.5 or not least <= 1 - exponent <= greatest:
        return None
    return Literal.full(math.copysign(2.0 ** (1 - exponent), significand), dtype)


STRENGTH_REDUCTION = RewritePass("strength-reduction", (div_by_power_of_two,))
