"""Arithmetic foldings: casts, integers, extremes, and cheaper ops with equal bits."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.elementwise import (
    And,
    Bitcast,
    Cast,
    Div,
    Maximum,
    Minimum,
    Mul,
    Not,
    Or,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Sub,
    Xor,
)
from gptrs.ir.ops.indexing import DynamicSlice, Gather, Take
from gptrs.ir.program import Value
from gptrs.optimizer.constants import beside_splat, emit_splat, is_splat, splat_value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Emitter,
    Match,
    Operand,
    calls,
    rewrite,
)

cast, bitcast = calls(Cast), calls(Bitcast)
x = Operand("x")
b = Attribute[DType]("b")
c = Attribute[DType]("c")

_SIGNIFICAND = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
"""Bits of the significand, including the implicit one. Integers with at most so many bits are
exact.
"""

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

    A NaN stays a NaN, possibly with other bits.
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
        # An unsigned integer of 24 bits fits into f32 to the last bit, one of 25 does not.
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

    The first cast neither rounds nor saturates any value, so the second sees the original.
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


# Reads elements before widening, rather than from a widened copy of the whole.


late_cast, read = calls(Cast), calls(Take, Gather, DynamicSlice)
indices = Operand("indices")


@rewrite(read(late_cast(x, dtype=b), indices))
def read_of_cast(m: Match, emit: Emitter) -> Value | Declined:
    """f(cast(x, b), i) -> cast(f(x, i), b) where f moves elements and b is no narrower than x

    An embedding with narrow weights is looked up in its stored type, and only the rows found are
    widened. A symbolic number of rows counts as fewer than the table has.
    """
    source, wider = m[x].type, m[b]
    if wider.itemsize < source.dtype.itemsize:
        return Declined(f"{wider} is narrower than {source.dtype}")
    if not source.is_static:
        return Declined("its dims are symbolic")
    if m.type.is_static and m.type.size > source.size:
        return Declined(f"{m.type.size} elements are read of {source.size}")
    return emit(Cast(wider), emit(m[read], m[x], m[indices]))


LATE_CASTS = RewritePass("late-casts", (read_of_cast,))


# Rounds the operands of products with a matrix to bf16, which defines the precision `bf16` in PTIR.
#
# Not part of the pipeline, as it changes results: a backend with that precision runs it in
# `legalize`, or computes the same with its own kernels.


dot_general = calls(DotGeneral)
w = Operand("w")
_MATRIX = 2


@rewrite(dot_general(x, w))
def product_with_matrix(m: Match, emit: Emitter) -> Value | Declined:
    """dot_general(x, w) -> dot_general(cast(x, bf16), cast(w, bf16), out_dtype = f32)

    x and w are f32, w is a matrix, and there are no batch axes: linear layers and heads. An operand
    that was bf16 before it was widened is used directly.
    """
    op, types = (
        m[dot_general],
        {m[x].type.dtype, m.type.dtype, m[dot_general].accumulator(m[x].type)},
    )
    if op.batch_lhs or m[w].type.rank != _MATRIX or len(op.contract_rhs) != 1:
        return Declined("its right side is not one matrix for all rows")
    if types != {dtypes.f32}:
        return Declined(f"it is a product of {m[x].type.dtype} that gives {m.type.dtype}")
    sides = [_rounded(m[side], m, emit) for side in (x, w)]
    return emit(replace(op, accum_dtype=dtypes.f32, out_dtype=dtypes.f32), *sides)


def _rounded(value: Value, m: Match, emit: Emitter) -> Value:
    node = m.definition(value)
    if node is not None and isinstance(node.op, Cast):
        (source,) = node.operands
        if source.type.dtype is dtypes.bf16:
            return source
    return emit(Cast(dtypes.bf16), value)


PRODUCT_ROUNDING = RewritePass("product-rounding", (product_with_matrix,))


# Drops operations on integers and `i1` whose result is an operand or a constant.


bits, absorbing = calls(And, Or, Xor), calls(And, Or, Mul)
idempotent, difference = calls(And, Or), calls(Xor, Sub)
not_, shift = calls(Not), calls(ShiftLeft, ShiftRightArithmetic, ShiftRightLogical)
y = Operand("y")


def all_ones(dtype: DType) -> int:
    """Return the value of an integer type, or of `i1`, in which every bit is set."""
    return -1 if dtype.kind == "signed" else 2**dtype.bits - 1


@rewrite(idempotent(x, x))
def bits_of_same(m: Match, emit: Emitter) -> Value:
    """and(x, x) -> x, and or(x, x) -> x"""
    return m[x]


@rewrite(difference(x, x))
def nothing_of_same(m: Match, emit: Emitter) -> Value | Declined:
    """xor(x, x) -> 0, and of integers sub(x, x) -> 0"""
    dtype = m.type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN or infinite, which leaves NaN")
    return emit_splat(emit, Literal.full(0, dtype), m.type)


@rewrite(bits(x, y))
def bits_of_neutral(m: Match, emit: Emitter) -> Value | Declined:
    """and(x, 11..1) -> x, or(x, 0) -> x, and xor(x, 0) -> x, on either side"""
    neutral = all_ones(m.type.dtype) if isinstance(m[bits], And) else 0
    return beside_splat(m, neutral) or Declined(f"neither operand is known to be {neutral}")


@rewrite(absorbing(x, y))
def absorption(m: Match, emit: Emitter) -> Value | Declined:
    """and(x, 0) -> 0, or(x, 11..1) -> 11..1, and of integers mul(x, 0) -> 0, on either side"""
    dtype = m.type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN or infinite, which 0 does not absorb")
    winner = all_ones(dtype) if isinstance(m[absorbing], Or) else 0
    found = next((m[side] for side in (x, y) if is_splat(m, m[side], winner)), None)
    return found or Declined(f"neither operand is known to be {winner}")


@rewrite(not_(not_(x)))
def not_of_not(m: Match, emit: Emitter) -> Value:
    """not(not(x)) -> x"""
    return m[x]


@rewrite(shift(x, y))
def shift_by_zero(m: Match, emit: Emitter) -> Value | Declined:
    """shift_left(x, 0) -> x, and likewise to the right"""
    return m[x] if is_splat(m, m[y], 0) else Declined("the amount is not known to be 0")


INTEGER_SIMPLIFICATION = RewritePass(
    "integer-simplification",
    (bits_of_same, nothing_of_same, bits_of_neutral, absorption, not_of_not, shift_by_zero),
)


# Drops `maximum` and `minimum` whose result is one of their operands.


extreme = calls(Maximum, Minimum)


@rewrite(extreme(x, x))
def extreme_of_same(m: Match, emit: Emitter) -> Value:
    """maximum(x, x) -> x, and minimum(x, x) -> x"""
    return m[x]


@rewrite(extreme(x, y))
def extreme_of_limit(m: Match, emit: Emitter) -> Value | Declined:
    """maximum(x, least) -> x, and minimum(x, greatest) -> x, on either side

    `least` is false, the least integer, or -inf. f8e4m3 has no infinities; its least and greatest
    numbers serve instead.
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


# Replaces an op by a faster one with the same result.
#
# It depends on the numbers in a program whether it can: patterns are matched before.


div = calls(Div)


@rewrite(div(x, y))
def div_by_power_of_two(m: Match, emit: Emitter) -> Value | Declined:
    """div(x, 2^k) -> mul(x, 2^-k) of floats

    Both are the same number before rounding, and multiplication is faster.
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
"""Exponents of the least and the greatest power of two that is normal in each float type."""


def _exact_reciprocal(number: Literal) -> Literal | None:
    """Return `1 / number` if that is a normal power of two."""
    dtype = number.type.dtype
    significand, exponent = math.frexp(float(number.array.astype(np.float64)))
    least, greatest = _EXPONENTS[dtype.name]
    # The number is 0.5 * 2^exponent; frexp returns infinities and NaN unchanged.
    if abs(significand) != 0.5 or not least <= 1 - exponent <= greatest:
        return None
    return Literal.full(math.copysign(2.0 ** (1 - exponent), significand), dtype)


STRENGTH_REDUCTION = RewritePass("strength-reduction", (div_by_power_of_two,))
