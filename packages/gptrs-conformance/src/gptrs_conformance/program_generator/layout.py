"""Emitters of the ops that move elements, alone and in chains of one kind."""

from __future__ import annotations

import math
from typing import Literal as OneOf

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops import creation as creation_ops
from gptrs.ir.ops import indexing as indexing_ops
from gptrs.ir.ops import layout as layout_ops
from gptrs.ir.ops import sorting as sorting_ops
from gptrs.ir.ops.elementwise import Clamp
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import (
    MAX_SIZE,
    NUMBERS,
    ORDERED,
    REALS,
    Draft,
    StepDeclined,
    emits,
)
from gptrs_conformance.program_generator.elements import (
    Facts,
    Style,
    joined,
    listed_literal,
    magnitude,
    random_literal,
)
from gptrs_conformance.program_generator.elementwise import combinable, combined, kinds_of


@emits(layout_ops.Reshape, dtypes=dtypes.ALL)
def reshapes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    reshape(draft, draft.operand(dtype))


@emits(layout_ops.Transpose, dtypes=dtypes.ALL)
def transposes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    transpose(draft, draft.operand(dtype))


@emits(layout_ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcasts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    broadcast(draft, draft.operand(dtype))


def chain(draft: Draft, x: Value) -> None:
    """Layout ops on one another, more often than not of one kind."""
    steps = (reshape, transpose, broadcast)
    # Chains of one kind are what optimizers merge, and where they go wrong.
    favourite = draft.dice.pick(steps)
    x = draft.dice.pick(steps)(draft, x)
    for _ in range(draft.dice.between(2, 4)):
        x = (favourite if draft.dice.chance(0.7) else draft.dice.pick(steps))(draft, x)


def reshape(draft: Draft, x: Value) -> Value:
    """To other dims, or to its own; one of them may be -1."""
    shape = list(x.type.shape if draft.dice.chance(0.2) else factors(draft.dice, x.type.size))
    if shape and draft.dice.chance(0.4):
        axis = draft.dice.below(len(shape))
        # -1 cannot be inferred beside a size of 0.
        if math.prod(shape[:axis] + shape[axis + 1 :]):
            shape[axis] = -1
    return draft.emit(layout_ops.Reshape(tuple(shape)), x, facts=draft.facts[x])


def factors(dice: Dice, size: int) -> Shape:
    """Dims, some of them 1, whose product is `size`."""
    if size == 0:
        return tuple(dice.shuffled((0, 1, 3)))
    dims: list[int] = []
    rest = size
    while rest > 1 and len(dims) < 3:
        dim = dice.pick([d for d in range(2, rest + 1) if rest % d == 0])
        dims.append(dim)
        rest //= dim
    dims += [rest] if rest > 1 else []
    dims += [1] * dice.pick((0, 0, 1, 2))
    return tuple(dice.shuffled(dims[-5:] if math.prod(dims[:-5]) == 1 else dims[:5]))


def transpose(draft: Draft, x: Value) -> Value:
    """Axes in any order, or in their own."""
    axes = list(range(x.type.rank))
    if draft.dice.chance(0.8):
        axes = draft.dice.shuffled(axes)
    return draft.emit(layout_ops.Transpose(tuple(axes)), x, facts=draft.facts[x])


def broadcast(draft: Draft, x: Value) -> Value:
    """Dims of 1 grow, and axes come in front, or nothing changes."""
    grow = draft.dice.chance(0.5)
    dims = [draft.dice.pick((0, 1, 2, 3)) if dim == 1 and grow else dim for dim in x.type.shape]
    # A bound, since chains of broadcasts would grow in rank and size without end.
    lead: Shape = draft.dice.pick(((), (), (1,), (2,))) if x.type.rank < 4 else ()
    return draft.emit(layout_ops.BroadcastTo((*lead, *dims)), x, facts=draft.facts[x])


@emits(layout_ops.Slice, dtypes=dtypes.ALL, weight=2)
def slices(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    slice_(draft, draft.operand(dtype))


def slice_(draft: Draft, x: Value) -> Value:
    """Return any part, in steps or not."""
    starts = [draft.dice.between(0, dim) for dim in x.type.shape]
    steps = [draft.dice.pick((1, 1, 2, 3)) for _ in starts]
    sizes = [
        draft.dice.between(0, -(-(dim - start) // step))
        for dim, start, step in zip(x.type.shape, starts, steps, strict=True)
    ]
    strides = None if max(steps, default=1) == 1 and draft.dice.chance(0.8) else tuple(steps)
    return draft.emit(
        layout_ops.Slice(tuple(starts), tuple(sizes), strides), x, facts=draft.facts[x]
    )


@emits(layout_ops.Concat, dtypes=dtypes.ALL, weight=2)
def concats(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of one to four operands."""
    x = draft.operand(dtype, least_rank=1)
    axis = draft.dice.below(x.type.rank)
    head, tail = x.type.shape[:axis], x.type.shape[axis + 1 :]

    def fits(value: Value) -> bool:
        shape = value.type.shape
        return shape[:axis] == head and shape[axis + 1 :] == tail and len(shape) == x.type.rank

    parts = [x]
    for _ in range(draft.dice.below(4)):
        found = draft.search(lambda value: value.type.dtype is dtype and fits(value))
        # Values of the program first: a fresh constant tests no connection.
        parts.append(found or draft.fresh(TensorType(dtype, (*head, draft.dice.below(3), *tail))))
    draft.emit(
        layout_ops.Concat(axis), *parts, facts=joined(*(draft.facts[part] for part in parts))
    )


@emits(layout_ops.Pad, dtypes=dtypes.ALL)
def pads(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    pad(draft, draft.operand(dtype))


def pad(draft: Draft, x: Value) -> Value:
    """Around, between, and the other way: trimmed."""
    interior = [draft.dice.pick((0, 0, 1, 2)) for _ in x.type.shape]
    low: list[int] = []
    high: list[int] = []
    for dim, between in zip(x.type.shape, interior, strict=True):
        # Trimmed within what there is: a negative size would be refused.
        spread = dim + between * max(dim - 1, 0)
        low.append(draft.dice.between(-min(spread, 2), 2))
        high.append(draft.dice.between(-min(spread + min(low[-1], 0), 2), 2))
    value = random_literal(draft.dice, TensorType(x.type.dtype, ()), "special")
    given = draft.dice.chance(0.7)
    op = layout_ops.Pad(
        tuple(low),
        tuple(high),
        tuple(interior) if any(interior) or draft.dice.chance(0.2) else None,
        Scalar(value) if given else None,
    )
    border = Facts(magnitude(value) if given else 0.0)
    return draft.emit(op, x, facts=joined(draft.facts[x], border))


@emits(layout_ops.Tile, dtypes=dtypes.ALL)
def tiles(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    tile(draft, draft.operand(dtype))


def tile(draft: Draft, x: Value) -> Value:
    """Up to three times along each axis."""
    repeats = tuple(draft.dice.weighted(range(4), (1, 8, 5, 2)) for _ in x.type.shape)
    return draft.emit(layout_ops.Tile(repeats), x, facts=draft.facts[x])


@emits(layout_ops.Reverse, dtypes=dtypes.ALL)
def reverses(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    reverse(draft, draft.operand(dtype))


def reverse(draft: Draft, x: Value) -> Value:
    """Along any axes, none at all included."""
    axes = tuple(draft.dice.some(range(x.type.rank)))
    return draft.emit(layout_ops.Reverse(axes), x, facts=draft.facts[x])


# Emitters of the ops that read or write at positions given by a tensor: they stay in range.


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


@emits(indexing_ops.Take, dtypes=dtypes.ALL, weight=2)
def takes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any number of rows."""
    rows_of(draft, draft.operand(dtype, least_rank=1))


def rows_of(draft: Draft, x: Value) -> Value:
    """Return any number of rows of `x`."""
    rows, *row = x.type.shape
    shape = draft.shape(greatest_rank=2)
    if not rows or TensorType(x.type.dtype, (*shape, *row)).size > MAX_SIZE:
        shape = (*shape[:1], 0)
    return draft.emit(indexing_ops.Take(), x, indices(draft, shape, rows), facts=draft.facts[x])


def _inner_shape(draft: Draft, shape: Shape, axis: int) -> Shape:
    """Return a shape that is no larger on any axis, but any size along `axis`."""
    dims = [dim if draft.dice.chance(0.6) else draft.dice.between(0, dim) for dim in shape]
    dims[axis] = draft.dice.below(6) if shape[axis] else 0
    return tuple(dims)


@emits(indexing_ops.Gather, dtypes=dtypes.ALL, weight=2)
def gathers(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis."""
    gathered(draft, draft.operand(dtype, least_rank=1))


def gathered(draft: Draft, x: Value) -> Value:
    """Elements of `x` along any axis."""
    axis = draft.dice.below(x.type.rank)
    shape = _inner_shape(draft, x.type.shape, axis)
    where = indices(draft, shape, x.type.shape[axis])
    return draft.emit(indexing_ops.Gather(axis), x, where, facts=draft.facts[x])


@emits(indexing_ops.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slices(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A block of any size, whose starts are clamped."""
    block_of(draft, draft.operand(dtype))


def block_of(draft: Draft, x: Value) -> Value:
    """Return a block of `x` of any size."""
    sizes = tuple(draft.dice.between(0 if dim < 2 else 1, dim) for dim in x.type.shape)
    where = starts(draft, x.type.rank)
    return draft.emit(indexing_ops.DynamicSlice(sizes), x, where, facts=draft.facts[x])


@emits(indexing_ops.DynamicUpdateSlice, dtypes=dtypes.ALL)
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
    draft.emit(indexing_ops.DynamicUpdateSlice(), x, update, where, facts=facts)


@emits(indexing_ops.ScatterReduce, dtypes=dtypes.ALL, weight=2)
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
    draft.emit(indexing_ops.ScatterReduce(axis, kind), x, where, updates, facts=known)


@emits(indexing_ops.SegmentReduce, dtypes=NUMBERS)
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
    draft.emit(indexing_ops.SegmentReduce(kind, count), x, ids, facts=Facts(bound, known.error))


# Emitters of the ops that make a tensor from attributes alone.


STYLES: tuple[Style, ...] = ("ordinary", "special", "special", "bits", "mild")


@emits(creation_ops.Constant, dtypes=dtypes.ALL)
def constants(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A literal in any style."""
    draft.constant(TensorType(dtype, draft.shape()), draft.dice.pick(STYLES))


@emits(creation_ops.Iota, dtypes=REALS)
def iotas(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis; no dim is too long for any type."""
    shape = draft.shape(least_rank=1)
    draft.emit(
        creation_ops.Iota(shape, draft.dice.below(len(shape)), dtype),
        facts=Facts(float(max(shape))),
    )


# Emitters of the ops that put elements in order.


@emits(sorting_ops.Sort, dtypes=ORDERED, weight=2)
def sorts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One to three tensors by an exact one; not stable only where no one can tell."""
    x = draft.operand(dtype, least_rank=1, exact=True)

    def alike(value: Value) -> bool:
        return value.type.shape == x.type.shape

    others = [draft.search(alike) or x for _ in range(draft.dice.below(3))]
    # Equal integers on their own are the same in any order; zeros of both signs are not.
    stable = dtype.is_float or bool(others) or draft.dice.chance(0.5)
    axis = draft.dice.below(x.type.rank)
    operands = (x, *others)
    facts = [draft.facts[operand] for operand in operands]
    draft.emit_many(sorting_ops.Sort(axis, draft.dice.chance(0.5), stable), operands, facts)


@emits(sorting_ops.TopK, dtypes=ORDERED, weight=2)
def tops(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any number of elements along any axis of an exact operand."""
    x = draft.operand(dtype, least_rank=1, exact=True)
    axis = draft.dice.below(x.type.rank)
    k = draft.dice.between(0, x.type.shape[axis])
    positions = draft.dice.pick((dtypes.si32, dtypes.si64))
    top_k = sorting_ops.TopK(k, axis, draft.dice.chance(0.6), positions)
    draft.emit_many(top_k, [x], [draft.facts[x], draft.facts[x]])
