"""Drops `maximum` and `minimum` whose result is one of their operands."""

from __future__ import annotations

import math

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Maximum, Minimum
from gptrs.ir.program import Value
from gptrs.optimizer.constants import beside_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

extreme = calls(Maximum, Minimum)
x = Operand("x")
y = Operand("y")


@rewrite(extreme(x, x))
def extreme_of_same(m: Match, emit: Emitter) -> Value:
    """maximum(x, x) -> x, and minimum(x, x) -> x"""
    return m[x]


@rewrite(extreme(x, y))
def extreme_of_limit(m: Match, emit: Emitter) -> Value | Declined:
    """maximum(x, least) -> x, and minimum(x, greatest) -> x, on either side

    `least` is false, the least integer, or -inf; f8e4m3, which has no infinities, has no such value
    that NaN does not exceed, but its least and greatest numbers do as well.
    """
    limit = (_least if isinstance(m[extreme], Maximum) else _greatest)(m.type.dtype)
    return beside_splat(m, limit) or Declined(f"neither operand is known to be {limit}")


def _greatest(dtype: DType) -> float:
    if dtype.is_float:
        return 448.0 if dtype.name == "f8e4m3" else math.inf
    return 2 ** (dtype.bits - (dtype.kind == "signed")) - 1


def _least(dtype: DType) -> float:
    if dtype.is_float:
        return -_greatest(dtype)
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0


EXTREME_FOLDING = RewritePass("extreme-folding", (extreme_of_same, extreme_of_limit))
