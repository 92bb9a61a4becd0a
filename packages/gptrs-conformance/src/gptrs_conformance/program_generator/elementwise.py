"""Emitters of the ops that compute each element from those at the same position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal as OneOf

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.program import Value
from gptrs_conformance.program_generator.draft import Draft, StepDeclined
from gptrs_conformance.program_generator.elements import listed_literal
from gptrs_conformance.program_generator.emitters import (
    NUMBERS,
    ORDERED,
    REALS,
    EmitOp,
    emits,
    of_kind,
)
from gptrs_conformance.program_generator.facts import SIGN_OF_ZERO_OPEN, Facts, computed, joined

Direction = OneOf["lt", "le", "eq", "ge", "gt", "ne"]

UNARY = [op for op in OPS.values() if issubclass(op, ops.Unary)]
SMOOTH = [op for op in UNARY if op.smooth]
SINGULAR = [op for op in UNARY if op.ulps and not op.smooth]
JUMPING = [op for op in UNARY if not op.ulps and op not in (ops.Neg, ops.Abs)]

POWERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0, math.inf, -math.inf, math.nan)
FLOATING = of_kind("float", "complex")
BITS = of_kind("bool", "signed", "unsigned")
DIRECTIONS: tuple[Direction, ...] = ("lt", "le", "eq", "ge", "gt", "ne")


def emits_all(rows: Sequence[type[ops.Unary]]) -> Callable[[EmitOp], EmitOp]:
    """Decorator: the function writes instructions of all these rows, on the types of each."""

    def add(emit: EmitOp) -> EmitOp:
        for op in rows:
            emits(op, dtypes=of_kind(*op.kinds))(emit)
        return emit

    return add


@emits(ops.Neg, dtypes=NUMBERS)
@emits(ops.Abs, dtypes=REALS)
@emits(ops.StopGradient, dtypes=dtypes.ALL)
def keeping(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Nothing is rounded."""
    x = draft.operand(dtype)
    draft.emit(op(), x, facts=draft.facts[x])


@emits_all(JUMPING)
@emits(ops.IsFinite, dtypes=FLOATING)
def jumping(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Results jump, so that the operand is exact."""
    x = draft.operand(dtype, exact=True)
    draft.emit(op(), x, facts=Facts(1.0 if op is ops.Sign else draft.facts[x].bound + 1.0))


@emits_all(SINGULAR)
def singular(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Slopes have no limit, so that the operand is exact."""
    x = draft.mild(dtype) if dtype.is_complex else draft.operand(dtype, exact=True)
    draft.emit(op(), x, facts=computed(dtype, 16.0 if dtype.is_complex else math.inf))


@emits_all(SMOOTH)
def smooth(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Errors grow by the slope, which is small near 0; exact operands may have any magnitude."""
    assert issubclass(op, ops.Unary)
    assert op.smooth
    limit, slope, bound = op.smooth
    if dtype.is_complex:
        draft.emit(op(), draft.mild(dtype), facts=computed(dtype, 16.0))
        return
    x = draft.operand(dtype)
    if op not in (ops.Sin, ops.Cos) and not draft.facts[x].error and draft.dice.chance(0.5):
        draft.emit(op(), x, facts=computed(dtype, bound if bound == 1.0 else math.inf))
        return
    x = draft.tame(x, limit)
    draft.emit(op(), x, facts=computed(dtype, bound, slope * draft.facts[x].distance))


@emits(ops.Add, ops.Sub, dtypes=NUMBERS, weight=2)
def sums(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Exact if the operands are; errors add up, so that values that have one are small."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    x, y = (draft.tame(value, 4.0) if draft.facts[value].error else value for value in (x, y))
    a, b = draft.facts[x], draft.facts[y]
    distance = a.distance + b.distance
    bound = a.bound + b.bound
    draft.emit(op(), x, y, facts=computed(dtype, bound, distance) if distance else Facts(bound))


@emits(ops.Mul, dtypes=NUMBERS, weight=2)
def products(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Exact if the operands are real and exact; errors are multiplied."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    if dtype.is_complex or draft.facts[x].error or draft.facts[y].error:
        x, y = draft.tame(x, 2.0), draft.tame(y, 2.0)
        a, b = draft.facts[x], draft.facts[y]
        distance = 2.0 * (a.distance * b.scale + b.distance * a.scale)
        draft.emit(op(), x, y, facts=computed(dtype, 2.0 * a.scale * b.scale, distance))
        return
    draft.emit(op(), x, y, facts=Facts(draft.facts[x].scale * draft.facts[y].scale))


@emits(ops.Div, dtypes=NUMBERS)
def quotients(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Integer divisors are not 0; neither are those of values that have an error."""
    x = draft.operand(dtype)
    if dtype.is_integer:
        draft.emit(op(), x, divisor(draft, draft.like(x.type)))
    elif dtype.is_complex or draft.facts[x].error:
        x = draft.tame(x, 4.0)
        distance = 16.0 * draft.facts[x].distance
        draft.emit(op(), x, draft.constant(x.type, "mild"), facts=computed(dtype, 32.0, distance))
    else:
        y = draft.like(x.type, exact=True)
        draft.emit(op(), x, y, facts=computed(dtype, math.inf))


@emits(ops.Rem, dtypes=REALS)
def remainders(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of exact operands; integer divisors are not 0."""
    x = draft.operand(dtype, exact=True)
    y = draft.like(x.type, exact=True)
    draft.emit(op(), x, divisor(draft, y) if dtype.is_integer else y)


def divisor(draft: Draft, y: Value) -> Value:
    """Integers that are not 0, made of `y` or of nothing."""
    one = draft.splat(1, y.type)
    op = draft.dice.pick((ops.Or, ops.Maximum))()
    made = draft.attempt(lambda: draft.emit(op, y, one)) if draft.dice.chance(0.8) else None
    if made is not None:
        return made
    values = (1, 2, 3, 5, 7, -1, -3) if y.type.dtype.kind == "signed" else (1, 2, 3, 5, 7)
    return draft.literal(listed_literal(draft.dice, y.type, values))


@emits(ops.Pow, dtypes=FLOATING)
def powers(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of special constants, or of a base and an exponent that are neither large nor near 0."""
    if dtype.is_complex:
        x = draft.mild(dtype)
        y = draft.constant(x.type, "mild")
        draft.emit(op(), x, y, facts=computed(dtype, math.inf, 0.0, 4.0))
        return
    x = draft.operand(dtype)
    if draft.dice.chance(0.4):
        x, y = (draft.literal(listed_literal(draft.dice, x.type, POWERS)) for _ in range(2))
        draft.emit(op(), x, y, facts=computed(dtype, math.inf))
        return
    low, high = draft.splat(0.5, x.type), draft.splat(2.0, x.type)
    base = draft.emit(ops.Clamp(), x, low, high, facts=Facts(2.0, draft.facts[x].error))
    exponent = draft.tame(draft.like(x.type), 4.0)
    distance = 32.0 * draft.facts[base].distance + 12.0 * draft.facts[exponent].distance
    draft.emit(op(), base, exponent, facts=computed(dtype, 16.0, distance))


@emits(ops.Maximum, ops.Minimum, dtypes=ORDERED)
@emits(ops.Clamp, dtypes=REALS)
def choices(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One of the operands; which one of two zeros is open."""
    x = draft.operand(dtype)
    operands = [x, *(draft.like(x.type) for _ in op.operand_names[1:])]
    facts = joined(*(draft.facts[value] for value in operands))
    least = SIGN_OF_ZERO_OPEN if dtype.is_float else 0.0
    draft.emit(op(), *operands, facts=Facts(facts.bound, max(facts.error, least)))


@emits(ops.And, ops.Or, ops.Xor, dtypes=BITS)
def bits(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any operands."""
    x = draft.operand(dtype)
    draft.emit(op(), x, draft.like(x.type))


@emits(
    ops.ShiftLeft,
    ops.ShiftRightArithmetic,
    ops.ShiftRightLogical,
    dtypes=dtypes.INTEGERS,
)
def shifts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """By any amount, or by one about the width of the type."""
    x = draft.operand(dtype)
    width = dtype.bits
    amounts = (0, 1, 2, 3, width - 1, min(width, 7))
    if draft.dice.chance(0.6):
        y = draft.literal(listed_literal(draft.dice, x.type, amounts))
    else:
        y = draft.like(x.type)
    draft.emit(op(), x, y)


@emits(ops.Compare, dtypes=dtypes.ALL, weight=2)
def comparisons(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of exact operands in any direction that the type has."""
    x = draft.operand(dtype, exact=True)
    y = draft.like(x.type, exact=True)
    direction = draft.dice.pick(("eq", "ne") if dtype.is_complex else DIRECTIONS)
    draft.emit(ops.Compare(direction), x, y)


@emits(ops.Select, dtypes=dtypes.ALL, weight=2)
def selections(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One of two operands."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    predicate = draft.like(x.type.with_dtype(dtypes.i1))
    draft.emit(op(), predicate, x, y, facts=joined(draft.facts[x], draft.facts[y]))


@emits(ops.Cast, dtypes=dtypes.ALL, weight=3)
def casts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """To a type that is in use or any other; where results jump, of an exact operand."""
    targets = [
        target
        for target in (draft.palette if draft.dice.chance(0.6) else dtypes.ALL)
        if not dtype.is_complex or target.is_complex or target.is_bool
    ]
    if not targets:
        raise StepDeclined
    target = draft.dice.pick(targets)
    rounding = target.is_float or target.is_complex
    x = draft.operand(dtype, exact=not rounding)
    if not rounding:
        draft.emit(ops.Cast(target), x)
        return
    if draft.facts[x].error:
        # A magnitude near the greatest of the target could come out as infinity or not.
        x = draft.tame(x, 64.0)
    known = draft.facts[x]
    facts = computed(target, known.bound, known.distance) if known.error else Facts()
    draft.emit(ops.Cast(target), x, facts=facts)


@emits(ops.Bitcast, dtypes=tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool))
def bitcasts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of an exact operand without NaN, whose bits are open."""
    same = [other for other in dtypes.ALL if other.bits == dtype.bits and not other.is_bool]
    target = draft.dice.pick(same)
    x = draft.operand(dtype, exact=True)
    if (dtype.is_float or dtype.is_complex) and target is not dtype:
        number = draft.emit(ops.Compare("eq"), x, x)
        x = draft.emit(ops.Select(), number, x, draft.splat(1, x.type), facts=draft.facts[x])
    draft.emit(ops.Bitcast(target), x)
