"""Emitters of the ops that move elements, alone and in chains of one kind."""

from __future__ import annotations

import math

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops import layout as ops
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import magnitude, random_literal
from gptrs_conformance.program_generator.emitters import emits
from gptrs_conformance.program_generator.facts import Facts, joined


@emits(ops.Reshape, dtypes=dtypes.ALL)
def reshapes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    reshape(draft, draft.operand(dtype))


@emits(ops.Transpose, dtypes=dtypes.ALL)
def transposes(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    transpose(draft, draft.operand(dtype))


@emits(ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcasts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    broadcast(draft, draft.operand(dtype))


def chain(draft: Draft, x: Value) -> None:
    """Layout ops on one another, more often than not of one kind."""
    steps = (reshape, transpose, broadcast)
    favourite = draft.dice.pick(steps)
    x = draft.dice.pick(steps)(draft, x)
    for _ in range(draft.dice.between(2, 4)):
        x = (favourite if draft.dice.chance(0.7) else draft.dice.pick(steps))(draft, x)


def reshape(draft: Draft, x: Value) -> Value:
    """To other dims, or to its own; one of them may be -1."""
    shape = list(x.type.shape if draft.dice.chance(0.2) else factors(draft.dice, x.type.size))
    if shape and draft.dice.chance(0.4):
        axis = draft.dice.below(len(shape))
        if math.prod(shape[:axis] + shape[axis + 1 :]):
            shape[axis] = -1
    return draft.emit(ops.Reshape(tuple(shape)), x, facts=draft.facts[x])


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
    return draft.emit(ops.Transpose(tuple(axes)), x, facts=draft.facts[x])


def broadcast(draft: Draft, x: Value) -> Value:
    """Dims of 1 grow, and axes come in front, or nothing changes."""
    grow = draft.dice.chance(0.5)
    dims = [draft.dice.pick((0, 1, 2, 3)) if dim == 1 and grow else dim for dim in x.type.shape]
    lead: Shape = draft.dice.pick(((), (), (1,), (2,))) if x.type.rank < 4 else ()
    return draft.emit(ops.BroadcastTo((*lead, *dims)), x, facts=draft.facts[x])


@emits(ops.Slice, dtypes=dtypes.ALL, weight=2)
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
    return draft.emit(ops.Slice(tuple(starts), tuple(sizes), strides), x, facts=draft.facts[x])


@emits(ops.Concat, dtypes=dtypes.ALL, weight=2)
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
        parts.append(found or draft.fresh(TensorType(dtype, (*head, draft.dice.below(3), *tail))))
    draft.emit(ops.Concat(axis), *parts, facts=joined(*(draft.facts[part] for part in parts)))


@emits(ops.Pad, dtypes=dtypes.ALL)
def pads(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    pad(draft, draft.operand(dtype))


def pad(draft: Draft, x: Value) -> Value:
    """Around, between, and the other way: trimmed."""
    interior = [draft.dice.pick((0, 0, 1, 2)) for _ in x.type.shape]
    low: list[int] = []
    high: list[int] = []
    for dim, between in zip(x.type.shape, interior, strict=True):
        spread = dim + between * max(dim - 1, 0)
        low.append(draft.dice.between(-min(spread, 2), 2))
        high.append(draft.dice.between(-min(spread + min(low[-1], 0), 2), 2))
    value = random_literal(draft.dice, TensorType(x.type.dtype, ()), "special")
    given = draft.dice.chance(0.7)
    op = ops.Pad(
        tuple(low),
        tuple(high),
        tuple(interior) if any(interior) or draft.dice.chance(0.2) else None,
        Scalar(value) if given else None,
    )
    border = Facts(magnitude(value) if given else 0.0)
    return draft.emit(op, x, facts=joined(draft.facts[x], border))


@emits(ops.Tile, dtypes=dtypes.ALL)
def tiles(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    tile(draft, draft.operand(dtype))


def tile(draft: Draft, x: Value) -> Value:
    """Up to three times along each axis."""
    repeats = tuple(draft.dice.weighted(range(4), (1, 8, 5, 2)) for _ in x.type.shape)
    return draft.emit(ops.Tile(repeats), x, facts=draft.facts[x])


@emits(ops.Reverse, dtypes=dtypes.ALL)
def reverses(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit the op on any value."""
    reverse(draft, draft.operand(dtype))


def reverse(draft: Draft, x: Value) -> Value:
    """Along any axes, none at all included."""
    axes = tuple(draft.dice.some(range(x.type.rank)))
    return draft.emit(ops.Reverse(axes), x, facts=draft.facts[x])
