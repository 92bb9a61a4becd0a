"""Drops conversions that change nothing, and those that another one makes up for."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Bitcast, Cast
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

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
    """Return whether `target` holds every value of `source`, -0.0 and infinities included.

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


@rewrite(cast(x))
def cast_to_same_type(m: Match, emit: Emitter) -> Value | Declined:
    """cast(x, dtype(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"{m[x].type.dtype} becomes {m.type.dtype}")
    return m[x]


@rewrite(cast(cast(x, dtype=b), dtype=c))
def cast_of_cast(m: Match, emit: Emitter) -> Value | Declined:
    """cast(cast(x, b), c) -> cast(x, c), x if it is of type c, where b holds every value of x

    No value is rounded or saturated in between, so that the second cast sees what the first saw.
    """
    if not is_exact(m[x].type.dtype, m[b]):
        return Declined(f"{m[b]} does not hold every value of {m[x].type.dtype}")
    return m[x] if m[x].type == m.type else emit(Cast(m[c]), m[x])


@rewrite(bitcast(x))
def bitcast_to_same_type(m: Match, emit: Emitter) -> Value | Declined:
    """bitcast(x, dtype(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"{m[x].type.dtype} becomes {m.type.dtype}")
    return m[x]


@rewrite(bitcast(bitcast(x), dtype=c))
def bitcast_of_bitcast(m: Match, emit: Emitter) -> Value:
    """bitcast(bitcast(x, b), c) -> bitcast(x, c)"""
    return emit(Bitcast(m[c]), m[x])


CAST_FOLDING = RewritePass(
    "cast-folding", (cast_to_same_type, cast_of_cast, bitcast_to_same_type, bitcast_of_bitcast)
)
