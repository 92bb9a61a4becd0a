"""Emitters of the ops that read or write at positions given by a tensor: they stay in range."""

from __future__ import annotations

from typing import Literal as OneOf

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import indexing as ops
from gptrs.ir.ops.elementwise import Clamp
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import MAX_SIZE, Draft, StepDeclined
from gptrs_conformance.program_generator.elements import listed_literal
from gptrs_conformance.program_generator.emitters import NUMBERS, emits
from gptrs_conformance.program_generator.facts import Facts, joined
from gptrs_conformance.program_generator.reduction import combinable, combined, kinds_of

ScatterKind = OneOf["add", "mul", "max", "min", "replace"]


def indices(draft: Draft, shape: Shape, limit: int) -> Value:
    """Return a tensor of integers in [0, limit): a constant, or any integers kept in range."""
    if TensorType(dtypes.i1, shape).size and limit < 1:
        raise StepDeclined
    allowed = [
        dtype
        for dtype in dtypes.INTEGERS
        if dtype in draft.rules.dtypes and limit <= 1 << dtype.bits - 1
    ]
    usual = [dtype for dtype in allowed if dtype.bits >= 32]
    if not allowed:
        raise StepDeclined
    dtype = draft.dice.pick(usual if usual and draft.dice.chance(0.6) else allowed)
    type_ = TensorType(dtype, shape)

    def clamp() -> Value:
        x = draft.like(type_)
        low, high = draft.splat(0, type_), draft.splat(max(limit - 1, 0), type_)
        return draft.emit(Clamp(), x, low, high)

    made = draft.attempt(clamp) if draft.dice.chance(0.5) else None
    return made or draft.literal(listed_literal(draft.dice, type_, range(max(limit, 1))))


def starts(draft: Draft, rank: int) -> Value:
    """Return any integers, which the ops clamp."""
    allowed = [dtype for dtype in dtypes.INTEGERS if dtype in draft.rules.dtypes]
    if not allowed:
        raise StepDeclined
    type_ = TensorType(draft.dice.pick(allowed), (rank,))
    return draft.constant(type_, "ordinary") if draft.dice.chance(0.5) else draft.like(type_)


@emits(ops.Take, dtypes=dtypes.ALL, weight=2)
def takes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any number of rows."""
    rows_of(draft, draft.operand(dtype, least_rank=1))


def rows_of(draft: Draft, x: Value) -> Value:
    """Return any number of rows of `x`."""
    rows, *row = x.type.shape
    shape = draft.shape(greatest_rank=2)
    if not rows or TensorType(x.type.dtype, (*shape, *row)).size > MAX_SIZE:
        shape = (*shape[:1], 0)
    return draft.emit(ops.Take(), x, indices(draft, shape, rows), facts=draft.facts[x])


def _inner_shape(draft: Draft, shape: Shape, axis: int) -> Shape:
    """Return a shape that is no larger on any axis, but any size along `axis`."""
    dims = [dim if draft.dice.chance(0.6) else draft.dice.between(0, dim) for dim in shape]
    dims[axis] = draft.dice.below(6) if shape[axis] else 0
    return tuple(dims)


@emits(ops.Gather, dtypes=dtypes.ALL, weight=2)
def gathers(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis."""
    gathered(draft, draft.operand(dtype, least_rank=1))


def gathered(draft: Draft, x: Value) -> Value:
    """Elements of `x` along any axis."""
    axis = draft.dice.below(x.type.rank)
    shape = _inner_shape(draft, x.type.shape, axis)
    where = indices(draft, shape, x.type.shape[axis])
    return draft.emit(ops.Gather(axis), x, where, facts=draft.facts[x])


@emits(ops.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slices(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A block of any size, whose starts are clamped."""
    block_of(draft, draft.operand(dtype))


def block_of(draft: Draft, x: Value) -> Value:
    """Return a block of `x` of any size."""
    sizes = tuple(draft.dice.between(0 if dim < 2 else 1, dim) for dim in x.type.shape)
    where = starts(draft, x.type.rank)
    return draft.emit(ops.DynamicSlice(sizes), x, where, facts=draft.facts[x])


@emits(ops.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_updates(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A block no larger than the operand."""
    x = draft.operand(dtype)

    def fits(value: Value) -> bool:
        type_ = value.type
        return type_.rank == x.type.rank and all(
            size <= dim for size, dim in zip(type_.shape, x.type.shape, strict=True)
        )

    update = draft.search(lambda value: value.type.dtype is dtype and fits(value))
    if update is None or update is x:
        sizes = tuple(draft.dice.between(0, dim) for dim in x.type.shape)
        update = draft.fresh(TensorType(dtype, sizes))
    facts = joined(draft.facts[x], draft.facts[update])
    where = starts(draft, x.type.rank)
    draft.emit(ops.DynamicUpdateSlice(), x, update, where, facts=facts)


@emits(ops.ScatterReduce, dtypes=dtypes.ALL, weight=2)
def scatters(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Updates in range, as often as it comes to one element."""
    x = draft.operand(dtype, least_rank=1)
    kinds: tuple[ScatterKind, ...] = ("replace",)
    if dtype.is_complex:
        kinds = ("replace", "add", "mul")
    elif not dtype.is_bool:
        kinds = ("replace", "add", "mul", "max", "min")
    kind = draft.dice.pick(kinds)
    axis = draft.dice.below(x.type.rank)
    shape = _inner_shape(draft, x.type.shape, axis)
    updates = draft.like(TensorType(dtype, shape))
    known = joined(draft.facts[x], draft.facts[updates])
    if kind != "replace":
        named = {"add": "sum", "mul": "prod"}.get(kind, kind)
        x, updates = combinable(draft, x, named), combinable(draft, updates, named)
        count = 1 + shape[axis]
        accumulator = dtype.accumulator
        parts = [combined(draft, y, named, count, accumulator, dtype) for y in (x, updates)]
        known = joined(*parts)
    where = indices(draft, shape, x.type.shape[axis])
    draft.emit(ops.ScatterReduce(axis, kind), x, where, updates, facts=known)


@emits(ops.SegmentReduce, dtypes=NUMBERS)
def segments(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Rows in any order to any number of segments."""
    x = draft.operand(dtype, least_rank=1)
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    rows = x.type.shape[0]
    count = draft.dice.between(1 if rows else 0, 5)
    ids = indices(draft, (rows,), count)
    # A segment may be empty, so that the identity of max and min is a result.
    known = combined(draft, x, kind, rows, dtype.accumulator, dtype)
    bound = float("inf") if kind in ("max", "min") else known.bound
    draft.emit(ops.SegmentReduce(kind, count), x, ids, facts=Facts(bound, known.error))
