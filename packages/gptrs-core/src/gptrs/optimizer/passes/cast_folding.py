"""Drops conversions that change nothing, and those that another one makes up for."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Bitcast, Cast
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

cast, bitcast = calls(Cast), calls(Bitcast)
x = Operand("x")
b = Attribute[DType]("b")
c = Attribute[DType]("c")

_SIGNIFICAND = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
"""Bits of the significand, the implicit one included. An integer of so many bits is exact: none is
out of the range of a type that holds all its bits."""

_WIDER_FLOATS = {
    "f8e4m3": ("bf16", "f16", "f32", "f64"),
    "f8e5m2": ("bf16", "f16", "f32", "f64"),
    "bf16": ("f32", "f64"),
    "f16": ("f32", "f64"),
    "f32": ("f64",),
    "f64": (),
}
_PARTS = {"cf32": "f32", "cf64": "f64"}


def is_exact(source: DType, target: DType) -> bool:
    """Whether `target` holds every value of `source`, the sign of zero and infinities included.

    A NaN comes out as a NaN, with bits of its own.
    """
    if source is target or source.is_bool:
        return True
    if target.is_bool or (source.is_complex and not target.is_complex):
        return False
    return _part_is_exact(source, target)


def _part_is_exact(source: DType, target: DType) -> bool:
    name, other = (_PARTS.get(dtype.name, dtype.name) for dtype in (source, target))
    if name == other:
        return True
    if source.is_integer:
        return _integer_is_exact(source, target, other)
    return other in _WIDER_FLOATS[name]


def _integer_is_exact(source: DType, target: DType, part: str) -> bool:
    magnitude = source.bits - (source.kind == "signed")
    if not target.is_integer:
        return magnitude <= _SIGNIFICAND[part]
    if source.kind == "signed" and target.kind == "unsigned":
        return False
    return magnitude <= target.bits - (target.kind == "signed")


class CastToSameType(Rewrite):
    """cast(x, dtype(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A cast."""
        return cast(x)

    def check(self, match: Match) -> str | None:
        """Refuse if the type changes."""
        if match.type != match[x].type:
            return f"{match[x].type.dtype} becomes {match.type.dtype}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class CastOfCast(Rewrite):
    """cast(cast(x, b), c) -> cast(x, c), x if it is of type c, where b holds every value of x

    No value is rounded or saturated in between, so that the second cast sees what the first saw.
    """

    def pattern(self) -> OpPattern:
        """A cast of a cast."""
        return cast(cast(x, dtype=b), dtype=c)

    def check(self, match: Match) -> str | None:
        """Refuse if the type in between does not hold every value."""
        if not is_exact(match[x].type.dtype, match[b]):
            return f"{match[b]} does not hold every value of {match[x].type.dtype}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One cast, or none."""
        if match[x].type == match.type:
            return match[x]
        return emit(Cast(match[c]), match[x])


class BitcastToSameType(Rewrite):
    """bitcast(x, dtype(x)) -> x"""

    def pattern(self) -> OpPattern:
        """A bitcast."""
        return bitcast(x)

    def check(self, match: Match) -> str | None:
        """Refuse if the type changes."""
        if match.type != match[x].type:
            return f"{match[x].type.dtype} becomes {match.type.dtype}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class BitcastOfBitcast(Rewrite):
    """bitcast(bitcast(x, b), c) -> bitcast(x, c)"""

    def pattern(self) -> OpPattern:
        """A bitcast of a bitcast."""
        return bitcast(bitcast(x), dtype=c)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The bits as the last type."""
        return emit(Bitcast(match[c]), match[x])


CAST_FOLDING = RewritePass(
    "cast-folding", (CastToSameType(), CastOfCast(), BitcastToSameType(), BitcastOfBitcast())
)
