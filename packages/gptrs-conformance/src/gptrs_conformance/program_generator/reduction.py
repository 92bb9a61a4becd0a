"""Emitters of the ops that combine elements along axes."""

from __future__ import annotations

from typing import Literal as OneOf

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import reduction as ops
from gptrs.ir.program import Value
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import epsilon
from gptrs_conformance.program_generator.emitters import NUMBERS, ORDERED, emits
from gptrs_conformance.program_generator.facts import (
    NOTHING_KNOWN,
    SIGN_OF_ZERO_OPEN,
    Facts,
    computed,
)

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
    kept = 4.0 * count * max(bound, 1.0) * epsilon(accumulator)
    return computed(result, bound, count * known.distance * max(bound / max(count, 1), 1.0) + kept)


@emits(ops.Reduce, dtypes=ORDERED + tuple(d for d in dtypes.ALL if d.is_complex), weight=3)
def reductions(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Over any axes, none and empty ones included."""
    x = draft.operand(dtype)
    axes = tuple(draft.dice.some(range(x.type.rank)))
    keepdims = draft.dice.chance(0.4)
    bitwise: tuple[BitKind, ...] = ("and", "or")
    if dtype.is_bool or (dtype.is_integer and draft.dice.chance(0.25)):
        out = kindred(draft, dtype) if dtype.is_integer else None
        draft.emit(ops.Reduce(draft.dice.pick(bitwise), axes, keepdims, None, out), x)
        return
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    reduce = ops.Reduce(kind, axes, keepdims, accumulator, kindred(draft, dtype))
    count = 1
    for axis in axes:
        count *= x.type.shape[axis]
    kept = reduce.accumulator(x.type)
    facts = combined(draft, x, kind, count, kept, reduce.out_dtype or dtype)
    draft.emit(reduce, x, facts=facts)


@emits(ops.Cumulative, dtypes=NUMBERS, weight=2)
def cumulatives(draft: Draft, op: type[Op], dtype: DType) -> None:
    """In both directions, with and without the element itself."""
    x = draft.operand(dtype, least_rank=1)
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    axis = draft.dice.below(x.type.rank)
    reverse, exclusive = draft.dice.chance(0.4), draft.dice.chance(0.4)
    cumulative = ops.Cumulative(kind, axis, reverse, exclusive, accumulator, kindred(draft, dtype))
    count = 0 if exclusive and kind in ("max", "min") else x.type.shape[axis]
    kept = cumulative.accumulator(x.type)
    facts = combined(draft, x, kind, count, kept, cumulative.out_dtype or dtype)
    draft.emit(cumulative, x, facts=facts)


@emits(ops.Argmax, ops.Argmin, dtypes=ORDERED)
def extremes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along an axis that is not empty, of an exact operand."""
    x = draft.operand(dtype, lambda value: max(value.type.shape) > 0, least_rank=1, exact=True)
    axis = draft.dice.pick([axis for axis, dim in enumerate(x.type.shape) if dim])
    keepdims = draft.dice.chance(0.4)
    position = draft.dice.pick((dtypes.si32, dtypes.si64))
    make = ops.Argmax if op is ops.Argmax else ops.Argmin
    draft.emit(make(axis, keepdims, position), x)
