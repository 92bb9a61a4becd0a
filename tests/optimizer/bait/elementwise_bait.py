"""Bait for the rewrites of ops that compute each element on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.ops.layout import BroadcastTo, Transpose
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.numerics import GREATEST, integer_range
from gptrs_conformance.program_generator.draft import ORDERED, REALS, Draft, ExtraStep, StepDeclined
from gptrs_conformance.program_generator.elements import SIGN_OF_ZERO_OPEN, Facts, computed
from gptrs_conformance.program_generator.elementwise import BITS, DIRECTIONS
from gptrs_conformance.program_generator.layout import block_of, gathered, rows_of
from optimizer.bait.layout_bait import repeated

CLOSE = (ops.Sqrt, ops.Reciprocal, ops.Div)
"""Ops whose results of floats backends may round in two ways."""
EXTREMES = (ops.Maximum, ops.Minimum)


def exact_value(draft: Draft, wanted: Sequence[DType], *, least_rank: int = 0) -> Value:
    """A value of one of the types `wanted` that PTIR fixes to the bit."""
    allowed = [dtype for dtype in wanted if dtype in draft.rules.dtypes]
    used = [dtype for dtype in draft.palette if dtype in allowed]
    if not allowed:
        raise StepDeclined
    dtype = draft.dice.pick(used if used and draft.dice.chance(0.8) else allowed)
    return draft.operand(dtype, exact=True, least_rank=least_rank)


def computing(draft: Draft, op: Op, *operands: Value) -> Value:
    """An elementwise op on exact values."""
    dtype = operands[0].type.dtype
    known = Facts()
    if isinstance(op, CLOSE) and dtype.is_float:
        known = computed(dtype, math.inf)
    elif isinstance(op, EXTREMES) and dtype.is_float:
        known = Facts(math.inf, SIGN_OF_ZERO_OPEN)
    return draft.emit(op, *operands, facts=known)


def numbers(dtype: DType) -> list[float]:
    """Numbers of the type that are neutral or decide in some op, and others."""
    if dtype.is_bool:
        return [0, 1]
    if dtype.is_integer:
        return [0, 1, 2, *integer_range(dtype), -1 if dtype.kind == "signed" else 3]
    limit = GREATEST[dtype.name] if dtype.name == "f8e4m3" else math.inf
    return [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 8.0, 3.0, limit, -limit]


def everywhere(draft: Draft, number: float, type_: TensorType) -> Value:
    """`number` in each element: written out, or one element repeated, or moved besides."""
    if draft.dice.chance(0.4):
        return draft.splat(number, type_)
    one = draft.splat(number, TensorType(type_.dtype, ()))
    wide = draft.emit(BroadcastTo(type_.shape), one, facts=draft.facts[one])
    if draft.dice.chance(0.2):
        axes = tuple(range(type_.rank))
        return draft.emit(Transpose(axes), wide, facts=draft.facts[wide])
    return wide


def with_number(op: type[Op], wanted: Sequence[DType], *favourites: float) -> ExtraStep:
    """Bait of a binary op with a number on one side, often one of the `favourites`."""

    def emit(draft: Draft) -> None:
        x = exact_value(draft, wanted)
        known = numbers(x.type.dtype)
        fitting = [number for number in known if number in favourites]
        number = draft.dice.pick(fitting if fitting and draft.dice.chance(0.6) else known)
        if op is ops.Div and x.type.dtype.is_integer and not number:
            number = 1
        y = everywhere(draft, number, x.type)
        swapped = op not in (ops.Div, ops.Sub) and draft.dice.chance(0.4)
        computing(draft, op(), *((y, x) if swapped else (x, y)))

    return emit


def with_itself(op: type[Op], wanted: Sequence[DType]) -> ExtraStep:
    """Bait of a binary op of a value and itself."""

    def emit(draft: Draft) -> None:
        x = exact_value(draft, wanted)
        computing(draft, op(), x, x)

    return emit


def nested(outer: type[Op], inner: type[Op], wanted: Sequence[DType]) -> ExtraStep:
    """Bait of one unary op of another."""

    def emit(draft: Draft) -> None:
        computing(draft, outer(), computing(draft, inner(), exact_value(draft, wanted)))

    return emit


def with_negative(op: type[Op]) -> ExtraStep:
    """Bait of a sum or difference with a negated value."""

    def emit(draft: Draft) -> None:
        y = exact_value(draft, REALS)
        x = draft.like(y.type, exact=True)
        computing(draft, op(), x, computing(draft, ops.Neg(), y))

    return emit


def exact_unary(draft: Draft, x: Value) -> Value:
    """An op of one operand that is rounded in one way only, or not at all."""
    dtype = x.type.dtype
    fitting: list[Op] = [ops.Cast(draft.dice.pick(draft.palette))]
    if dtype in REALS:
        fitting += [ops.Neg(), ops.Abs(), ops.Sign()]
    if dtype in BITS:
        fitting += [ops.Not()]
    if dtype.is_float:
        fitting += [ops.Floor(), ops.Ceil(), ops.RoundNearestEven(), ops.IsFinite(), ops.Sqrt()]
        fitting += [ops.Reciprocal()]
    return computing(draft, draft.dice.pick(fitting), x)


def unary_of_broadcast(draft: Draft) -> None:
    """Of any type but complex ones."""
    exact_unary(draft, repeated(draft, exact_value(draft, ORDERED)))


def binary_of_broadcasts(draft: Draft) -> None:
    """Of two values of one shape, or of shapes of which one fits into the other."""
    x = exact_value(draft, ORDERED)
    dtype, wide = x.type.dtype, repeated(draft, x)
    shape = x.type.shape if draft.dice.chance(0.7) else x.type.shape[1:]
    y = draft.like(TensorType(dtype, shape), exact=True)
    fitting: list[Op] = [ops.Compare(draft.dice.pick(DIRECTIONS))]
    if dtype in REALS:
        fitting += [ops.Add(), ops.Sub(), ops.Mul()]
    if dtype in BITS:
        fitting += [ops.And(), ops.Or(), ops.Xor()]
    if dtype.is_float:
        fitting += [ops.Div(), ops.Rem()]
    if dtype.is_integer:
        fitting += [ops.ShiftLeft(), ops.ShiftRightArithmetic(), ops.ShiftRightLogical()]
    other = draft.emit(BroadcastTo(wide.type.shape), y, facts=draft.facts[y])
    operands = (wide, other) if draft.dice.chance(0.5) else (other, wide)
    computing(draft, draft.dice.pick(fitting), *operands)


def back_and_forth(draft: Draft) -> None:
    """A unary op between two transposes, which often undo each other."""
    x = exact_value(draft, ORDERED, least_rank=2)
    there = draft.dice.shuffled(range(x.type.rank))
    back = [there.index(axis) for axis in range(x.type.rank)]
    if draft.dice.chance(0.1):
        back = draft.dice.shuffled(back)
    turned = draft.emit(Transpose(tuple(there)), x, facts=draft.facts[x])
    y = exact_unary(draft, turned)
    draft.emit(Transpose(tuple(back)), y, facts=draft.facts[y])


def two_casts(draft: Draft) -> None:
    """From any type over another, mostly a wider one, to a third or back."""
    x = exact_value(draft, ORDERED)
    real = [dtype for dtype in draft.rules.dtypes if not dtype.is_complex]
    wide = [dtype for dtype in real if dtype.bits > x.type.dtype.bits]
    between = draft.dice.pick(wide if wide and draft.dice.chance(0.7) else real)
    last = x.type.dtype if draft.dice.chance(0.4) else draft.dice.pick(draft.rules.dtypes)
    computing(draft, ops.Cast(last), computing(draft, ops.Cast(between), x))


def read_of_cast(draft: Draft) -> None:
    """Elements at some places of a value that is cast, mostly to a wider type."""
    x = exact_value(draft, ORDERED, least_rank=1)
    real = [dtype for dtype in draft.rules.dtypes if not dtype.is_complex]
    wide = [dtype for dtype in real if dtype.itemsize >= x.type.dtype.itemsize]
    to = draft.dice.pick(wide if wide and draft.dice.chance(0.8) else real)
    draft.dice.pick((rows_of, gathered, block_of))(draft, computing(draft, ops.Cast(to), x))


def cast_to_itself(draft: Draft) -> None:
    """A cast to the type that the value has."""
    x = exact_value(draft, draft.rules.dtypes)
    computing(draft, ops.Cast(x.type.dtype), x)


def bitcasts(draft: Draft) -> None:
    """Two of an integer, or one to the type that it has."""
    x = exact_value(draft, dtypes.INTEGERS)
    same = [dtype for dtype in dtypes.INTEGERS if dtype.bits == x.type.dtype.bits]
    if draft.dice.chance(0.8):
        (other,) = (dtype for dtype in same if dtype is not x.type.dtype)
        x = computing(draft, ops.Bitcast(other), x)
        computing(draft, ops.Bitcast(draft.dice.pick(same)), x)
        return
    computing(draft, ops.Bitcast(x.type.dtype), x)


def known_selection(draft: Draft) -> None:
    """By a predicate that is the same everywhere, or written out and not."""
    x = exact_value(draft, draft.palette)
    type_ = x.type.with_dtype(dtypes.i1)
    known = draft.dice.chance(0.85)
    predicate = (
        everywhere(draft, draft.dice.below(2), type_) if known else draft.constant(type_, "special")
    )
    draft.emit(ops.Select(), predicate, x, draft.like(x.type, exact=True))


def selection_of_same(draft: Draft) -> None:
    """One value on both sides."""
    x = exact_value(draft, draft.palette)
    draft.emit(ops.Select(), draft.like(x.type.with_dtype(dtypes.i1)), x, x)


def negated_selection(draft: Draft) -> None:
    """By a negation."""
    x = exact_value(draft, draft.palette)
    predicate = draft.like(x.type.with_dtype(dtypes.i1))
    negated = computing(draft, ops.Not(), predicate)
    draft.emit(ops.Select(), negated, x, draft.like(x.type, exact=True))


def comparison_with_itself(draft: Draft) -> None:
    """In any direction, of floats too."""
    x = exact_value(draft, ORDERED)
    computing(draft, ops.Compare(draft.dice.pick(DIRECTIONS)), x, x)


SHIFTS = (ops.ShiftLeft, ops.ShiftRightArithmetic, ops.ShiftRightLogical)

BAIT: Sequence[ExtraStep] = (
    *[with_number(ops.Add, REALS, 0)] * 6,
    *[with_number(ops.Sub, REALS, 0)] * 5,
    *[with_number(ops.Mul, REALS, 1)] * 3,
    with_number(ops.Mul, dtypes.INTEGERS, 0),
    *[with_number(ops.Div, REALS, 1)] * 3,
    *[with_number(ops.Div, dtypes.FLOATS, 2, 0.5, 8)] * 7,
    *[with_number(ops.Maximum, ORDERED)] * 6,
    *[with_number(ops.Minimum, ORDERED)] * 6,
    *[with_number(op, BITS) for op in (ops.And, ops.Or, ops.Xor)] * 3,
    *[with_number(op, dtypes.INTEGERS, 0) for op in SHIFTS] * 2,
    *(with_itself(op, BITS) for op in (ops.And, ops.Or, ops.Xor)),
    *(with_itself(op, ORDERED) for op in EXTREMES),
    with_itself(ops.Sub, REALS),
    *[nested(ops.Neg, ops.Neg, REALS)] * 3,
    *(nested(op, op, REALS) for op in (ops.Abs, ops.Sign)),
    *(nested(op, op, dtypes.FLOATS) for op in (ops.Floor, ops.Ceil, ops.RoundNearestEven)),
    *[nested(ops.Abs, ops.Neg, REALS)] * 4,
    *[nested(ops.Not, ops.Not, BITS)] * 3,
    *[with_negative(ops.Add)] * 3,
    *[with_negative(ops.Sub)] * 3,
    *[unary_of_broadcast] * 2,
    *[binary_of_broadcasts] * 4,
    *[back_and_forth] * 10,
    *[two_casts] * 6,
    *[cast_to_itself] * 2,
    *[read_of_cast] * 11,
    *[bitcasts] * 7,
    *[known_selection] * 4,
    selection_of_same,
    *[negated_selection] * 6,
    *[comparison_with_itself] * 4,
)
"""Each writes a few instructions, the last of which is what a rewrite looks for; a bait stands here
as often as it takes for the rewrite to fire as often as others."""
