"""Emitters of the ops that compute each element from those at the same position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal as OneOf

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops import elementwise as elementwise_ops
from gptrs.ir.ops import reduction as reduction_ops
from gptrs.ir.program import Value
from gptrs_conformance.program_generator.draft import (
    NUMBERS,
    ORDERED,
    REALS,
    Draft,
    EmitOp,
    StepDeclined,
    emits,
    of_kind,
)
from gptrs_conformance.program_generator.elements import (
    NOTHING_KNOWN,
    SIGN_OF_ZERO_OPEN,
    Facts,
    computed,
    epsilon,
    joined,
    listed_literal,
)

Direction = OneOf["lt", "le", "eq", "ge", "gt", "ne"]

UNARY = [op for op in OPS.values() if issubclass(op, elementwise_ops.Unary)]
SMOOTH = [op for op in UNARY if op.smooth]
SINGULAR = [op for op in UNARY if op.ulps and not op.smooth]
JUMPING = [
    op for op in UNARY if not op.ulps and op not in (elementwise_ops.Neg, elementwise_ops.Abs)
]

POWERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0, math.inf, -math.inf, math.nan)
FLOATING = of_kind("float", "complex")
BITS = of_kind("bool", "signed", "unsigned")
DIRECTIONS: tuple[Direction, ...] = ("lt", "le", "eq", "ge", "gt", "ne")


def emits_all(rows: Sequence[type[elementwise_ops.Unary]]) -> Callable[[EmitOp], EmitOp]:
    """Decorator: the function writes instructions of all these rows, on the types of each."""

    def add(emit: EmitOp) -> EmitOp:
        for op in rows:
            emits(op, dtypes=of_kind(*op.kinds))(emit)
        return emit

    return add


@emits(elementwise_ops.Neg, dtypes=NUMBERS)
@emits(elementwise_ops.Abs, dtypes=REALS)
@emits(elementwise_ops.StopGradient, dtypes=dtypes.ALL)
def keeping(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Nothing is rounded."""
    x = draft.operand(dtype)
    draft.emit(op(), x, facts=draft.facts[x])


@emits_all(JUMPING)
@emits(elementwise_ops.IsFinite, dtypes=FLOATING)
def jumping(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Results jump, so that the operand is exact."""
    x = draft.operand(dtype, exact=True)
    draft.emit(
        op(), x, facts=Facts(1.0 if op is elementwise_ops.Sign else draft.facts[x].bound + 1.0)
    )


@emits_all(SINGULAR)
def singular(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Slopes have no limit, so that the operand is exact."""
    x = draft.mild(dtype) if dtype.is_complex else draft.operand(dtype, exact=True)
    draft.emit(op(), x, facts=computed(dtype, 16.0 if dtype.is_complex else math.inf))


@emits_all(SMOOTH)
def smooth(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Errors grow by the slope, which is small near 0; exact operands may have any magnitude."""
    assert issubclass(op, elementwise_ops.Unary)
    assert op.smooth
    limit, slope, bound = op.smooth
    if dtype.is_complex:
        draft.emit(op(), draft.mild(dtype), facts=computed(dtype, 16.0))
        return
    x = draft.operand(dtype)
    if (
        op not in (elementwise_ops.Sin, elementwise_ops.Cos)
        and not draft.facts[x].error
        and draft.dice.chance(0.5)
    ):
        draft.emit(op(), x, facts=computed(dtype, bound if bound == 1.0 else math.inf))
        return
    x = draft.tame(x, limit)
    draft.emit(op(), x, facts=computed(dtype, bound, slope * draft.facts[x].distance))


@emits(elementwise_ops.Add, elementwise_ops.Sub, dtypes=NUMBERS, weight=2)
def sums(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Exact if the operands are; errors add up, so that values that have one are small."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    # Relative errors grow where large numbers cancel, so values with an error are made small first.
    x, y = (draft.tame(value, 4.0) if draft.facts[value].error else value for value in (x, y))
    a, b = draft.facts[x], draft.facts[y]
    distance = a.distance + b.distance
    bound = a.bound + b.bound
    draft.emit(op(), x, y, facts=computed(dtype, bound, distance) if distance else Facts(bound))


@emits(elementwise_ops.Mul, dtypes=NUMBERS, weight=2)
def products(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Exact if the operands are real and exact; errors are multiplied."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    # A complex product is a sum of products, and rounded even of exact parts.
    if dtype.is_complex or draft.facts[x].error or draft.facts[y].error:
        x, y = draft.tame(x, 2.0), draft.tame(y, 2.0)
        a, b = draft.facts[x], draft.facts[y]
        distance = 2.0 * (a.distance * b.scale + b.distance * a.scale)
        draft.emit(op(), x, y, facts=computed(dtype, 2.0 * a.scale * b.scale, distance))
        return
    draft.emit(op(), x, y, facts=Facts(draft.facts[x].scale * draft.facts[y].scale))


@emits(elementwise_ops.Div, dtypes=NUMBERS)
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


@emits(elementwise_ops.Rem, dtypes=REALS)
def remainders(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of exact operands; integer divisors are not 0."""
    x = draft.operand(dtype, exact=True)
    y = draft.like(x.type, exact=True)
    draft.emit(op(), x, divisor(draft, y) if dtype.is_integer else y)


def divisor(draft: Draft, y: Value) -> Value:
    """Integers that are not 0, made of `y` or of nothing."""
    one = draft.splat(1, y.type)
    op = draft.dice.pick((elementwise_ops.Or, elementwise_ops.Maximum))()
    # `y | 1` and `max(y, 1)` are never 0, whatever `y` is.
    made = draft.attempt(lambda: draft.emit(op, y, one)) if draft.dice.chance(0.8) else None
    if made is not None:
        return made
    values = (1, 2, 3, 5, 7, -1, -3) if y.type.dtype.kind == "signed" else (1, 2, 3, 5, 7)
    return draft.literal(listed_literal(draft.dice, y.type, values))


@emits(elementwise_ops.Pow, dtypes=FLOATING)
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
    base = draft.emit(elementwise_ops.Clamp(), x, low, high, facts=Facts(2.0, draft.facts[x].error))
    exponent = draft.tame(draft.like(x.type), 4.0)
    distance = 32.0 * draft.facts[base].distance + 12.0 * draft.facts[exponent].distance
    draft.emit(op(), base, exponent, facts=computed(dtype, 16.0, distance))


@emits(elementwise_ops.Maximum, elementwise_ops.Minimum, dtypes=ORDERED)
@emits(elementwise_ops.Clamp, dtypes=REALS)
def choices(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One of the operands; which one of two zeros is open."""
    x = draft.operand(dtype)
    operands = [x, *(draft.like(x.type) for _ in op.operand_names[1:])]
    facts = joined(*(draft.facts[value] for value in operands))
    least = SIGN_OF_ZERO_OPEN if dtype.is_float else 0.0
    draft.emit(op(), *operands, facts=Facts(facts.bound, max(facts.error, least)))


@emits(elementwise_ops.And, elementwise_ops.Or, elementwise_ops.Xor, dtypes=BITS)
def bits(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any operands."""
    x = draft.operand(dtype)
    draft.emit(op(), x, draft.like(x.type))


@emits(
    elementwise_ops.ShiftLeft,
    elementwise_ops.ShiftRightArithmetic,
    elementwise_ops.ShiftRightLogical,
    dtypes=dtypes.INTEGERS,
)
def shifts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """By any amount, or by one about the width of the type."""
    x = draft.operand(dtype)
    width = dtype.bits
    amounts = (0, 1, 2, 3, width - 1, min(width, 7))
    if draft.dice.chance(0.6):
        # About the width, where hardware takes the amount modulo it and PTIR does not.
        y = draft.literal(listed_literal(draft.dice, x.type, amounts))
    else:
        y = draft.like(x.type)
    draft.emit(op(), x, y)


@emits(elementwise_ops.Compare, dtypes=dtypes.ALL, weight=2)
def comparisons(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of exact operands in any direction that the type has."""
    x = draft.operand(dtype, exact=True)
    y = draft.like(x.type, exact=True)
    direction = draft.dice.pick(("eq", "ne") if dtype.is_complex else DIRECTIONS)
    draft.emit(elementwise_ops.Compare(direction), x, y)


@emits(elementwise_ops.Select, dtypes=dtypes.ALL, weight=2)
def selections(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One of two operands."""
    x = draft.operand(dtype)
    y = draft.like(x.type)
    predicate = draft.like(x.type.with_dtype(dtypes.i1))
    draft.emit(op(), predicate, x, y, facts=joined(draft.facts[x], draft.facts[y]))


@emits(elementwise_ops.Cast, dtypes=dtypes.ALL, weight=3)
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
        draft.emit(elementwise_ops.Cast(target), x)
        return
    if draft.facts[x].error:
        # A magnitude near the greatest of the target could come out as infinity or not.
        x = draft.tame(x, 64.0)
    known = draft.facts[x]
    facts = computed(target, known.bound, known.distance) if known.error else Facts()
    draft.emit(elementwise_ops.Cast(target), x, facts=facts)


@emits(elementwise_ops.Bitcast, dtypes=tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool))
def bitcasts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of an exact operand without NaN, whose bits are open."""
    same = [other for other in dtypes.ALL if other.bits == dtype.bits and not other.is_bool]
    target = draft.dice.pick(same)
    x = draft.operand(dtype, exact=True)
    if (dtype.is_float or dtype.is_complex) and target is not dtype:
        # NaN alone differs from itself.
        number = draft.emit(elementwise_ops.Compare("eq"), x, x)
        x = draft.emit(
            elementwise_ops.Select(), number, x, draft.splat(1, x.type), facts=draft.facts[x]
        )
    draft.emit(elementwise_ops.Bitcast(target), x)


# Emitters of the ops that combine elements along axes.


Kind = OneOf["sum", "prod", "max", "min"]
BitKind = OneOf["and", "or"]


def kinds_of(dtype: DType) -> tuple[Kind, ...]:
    """Return the kinds that combine numbers of this type."""
    return ("sum", "prod") if dtype.is_complex else ("sum", "prod", "max", "min")


def kindred(draft: Draft, dtype: DType) -> DType | None:
    """Return a type that numbers of `dtype` may be kept in or returned as, or the default."""
    if draft.dice.chance(0.6):
        return None
    return draft.dice.pick([d for d in dtypes.ALL if d.kind == dtype.kind or
                            (d.is_integer and dtype.is_integer)])  # fmt: skip


def combinable(draft: Draft, x: Value, kind: str) -> Value:
    """`x`, or what can be combined in its place whatever the order: small for sums and products."""
    dtype = x.type.dtype
    if kind in ("max", "min") or not (dtype.is_float or dtype.is_complex):
        return x
    # Products of complex numbers grow even where all parts are at most 1.
    return draft.constant(x.type, "mild") if dtype.is_complex else draft.tame(x, 1.0)


def combined(
    draft: Draft, x: Value, kind: str, count: int, accumulator: DType, result: DType
) -> Facts:
    """Return the facts of `count` elements of `x`, from `combinable`, combined in any order."""
    known = draft.facts[x]
    if result.is_integer or result.is_bool:
        return NOTHING_KNOWN
    if kind in ("max", "min"):
        # Of no elements, it is an infinity or the greatest of the type.
        exact = Facts(known.bound if count else float("inf"), SIGN_OF_ZERO_OPEN)
        if not known.error and result is x.type.dtype:
            return exact
        return computed(result, exact.bound, known.distance)
    if result.is_complex:
        bound = 2.0 * count if kind == "sum" else 3.0**count
    else:
        bound = float(count) if kind == "sum" else 1.0
    # Backends combine in any order, so that each of the additions may round at the full bound.
    kept = 4.0 * count * max(bound, 1.0) * epsilon(accumulator)
    return computed(result, bound, count * known.distance * max(bound / max(count, 1), 1.0) + kept)


@emits(
    reduction_ops.Reduce, dtypes=ORDERED + tuple(d for d in dtypes.ALL if d.is_complex), weight=3
)
def reductions(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Over any axes, none and empty ones included."""
    x = draft.operand(dtype)
    axes = tuple(draft.dice.some(range(x.type.rank)))
    keepdims = draft.dice.chance(0.4)
    bitwise: tuple[BitKind, ...] = ("and", "or")
    if dtype.is_bool or (dtype.is_integer and draft.dice.chance(0.25)):
        out = kindred(draft, dtype) if dtype.is_integer else None
        draft.emit(reduction_ops.Reduce(draft.dice.pick(bitwise), axes, keepdims, None, out), x)
        return
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    reduce = reduction_ops.Reduce(kind, axes, keepdims, accumulator, kindred(draft, dtype))
    count = 1
    for axis in axes:
        count *= x.type.shape[axis]
    kept = reduce.accumulator(x.type)
    facts = combined(draft, x, kind, count, kept, reduce.out_dtype or dtype)
    draft.emit(reduce, x, facts=facts)


@emits(reduction_ops.Cumulative, dtypes=NUMBERS, weight=2)
def cumulatives(draft: Draft, op: type[Op], dtype: DType) -> None:
    """In both directions, with and without the element itself."""
    x = draft.operand(dtype, least_rank=1)
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    axis = draft.dice.below(x.type.rank)
    reverse, exclusive = draft.dice.chance(0.4), draft.dice.chance(0.4)
    cumulative = reduction_ops.Cumulative(
        kind, axis, reverse, exclusive, accumulator, kindred(draft, dtype)
    )
    count = 0 if exclusive and kind in ("max", "min") else x.type.shape[axis]
    kept = cumulative.accumulator(x.type)
    facts = combined(draft, x, kind, count, kept, cumulative.out_dtype or dtype)
    draft.emit(cumulative, x, facts=facts)


@emits(reduction_ops.Argmax, reduction_ops.Argmin, dtypes=ORDERED)
def extremes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along an axis that is not empty, of an exact operand."""
    # The position of the largest of no elements is not defined.
    x = draft.operand(dtype, lambda value: max(value.type.shape) > 0, least_rank=1, exact=True)
    axis = draft.dice.pick([axis for axis, dim in enumerate(x.type.shape) if dim])
    keepdims = draft.dice.chance(0.4)
    position = draft.dice.pick((dtypes.si32, dtypes.si64))
    make = reduction_ops.Argmax if op is reduction_ops.Argmax else reduction_ops.Argmin
    draft.emit(make(axis, keepdims, position), x)
