"""Drops `maximum` and `minimum` whose result is one of their operands."""

from __future__ import annotations

import math

from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.elementwise import Maximum, Minimum
from gptrs.ir.program import Value
from gptrs.optimizer.constants import is_splat
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

x = Operand("x")
y = Operand("y")


class ExtremeOfSame(Rewrite):
    """maximum(x, x) -> x, and minimum(x, x) -> x"""

    def __init__(self, op: type[Op]) -> None:
        self._call = calls(op)

    def pattern(self) -> OpPattern:
        """The larger or smaller of a value and itself."""
        return self._call(x, x)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """That value."""
        return match[x]


class ExtremeOfLimit(Rewrite):
    """maximum(x, least) -> x, and minimum(x, greatest) -> x, on either side

    `least` is false, the least integer, or -inf; f8e4m3, which has no infinities, has no such value
    that NaN does not exceed, but its least and greatest numbers do as well.
    """

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """The larger or smaller of two values."""
        return calls(self._op)(x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if neither operand is known to be the limit of the type."""
        limit = self._limit(match.type.dtype)
        if not any(is_splat(match, match[side], limit) for side in (x, y)):
            return f"neither operand is known to be {limit}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The other operand."""
        limit = self._limit(match.type.dtype)
        return match[x] if is_splat(match, match[y], limit) else match[y]

    def _limit(self, dtype: DType) -> float:
        return _least(dtype) if self._op is Maximum else _greatest(dtype)


def _greatest(dtype: DType) -> float:
    if dtype.is_float:
        return 448.0 if dtype.name == "f8e4m3" else math.inf
    return 2 ** (dtype.bits - (dtype.kind == "signed")) - 1


def _least(dtype: DType) -> float:
    if dtype.is_float:
        return -_greatest(dtype)
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0


EXTREME_FOLDING = RewritePass(
    "extreme-folding",
    (
        *(ExtremeOfSame(op) for op in (Maximum, Minimum)),
        *(ExtremeOfLimit(op) for op in (Maximum, Minimum)),
    ),
)
