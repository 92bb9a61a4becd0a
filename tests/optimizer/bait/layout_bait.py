"""Bait for the rewrites of ops that move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.ops import layout as ops
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.ops.window import ExtractPatches
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator import layout
from gptrs_conformance.program_generator.draft import Draft, ExtraStep, StepDeclined
from gptrs_conformance.program_generator.elements import Facts, joined

Move = Callable[[Draft, Value], Value]


def any_value(draft: Draft, *, least_rank: int = 0) -> Value:
    """A value of any element type in use."""
    return draft.operand(draft.dice.pick(draft.palette), least_rank=least_rank)


def repeated(draft: Draft, x: Value) -> Value:
    """`x` broadcast: dims of 1 grow, and axes come in front."""
    room = 5 - x.type.rank
    lead = [draft.dice.between(1, 3) for _ in range(draft.dice.between(0, min(room, 2)))]
    dims = [draft.dice.between(1, 3) if dim == 1 else dim for dim in x.type.shape]
    return draft.emit(ops.BroadcastTo((*lead, *dims)), x, facts=draft.facts[x])


def whole(draft: Draft, x: Value) -> Value:
    """All of `x` as a slice, or all but an end."""
    sizes = [max(dim - (draft.dice.chance(0.1)), 0) for dim in x.type.shape]
    strides = (
        None
        if draft.dice.chance(0.5)
        else tuple(draft.dice.pick((1, 2)) if size < 2 else 1 for size in sizes)
    )
    starts = (0,) * x.type.rank
    return draft.emit(ops.Slice(starts, tuple(sizes), strides), x, facts=draft.facts[x])


def several(draft: Draft, x: Value, axis: int) -> Value:
    """`x` between others of like shape along `axis`."""
    shape = list(x.type.shape)
    parts = [x]
    for _ in range(draft.dice.between(1, 3)):
        shape[axis] = draft.dice.pick((0, 1, 1, 2, 3))
        parts.insert(draft.dice.between(0, len(parts)), draft.like(x.type.with_shape(tuple(shape))))
    facts = joined(*(draft.facts[part] for part in parts))
    return draft.emit(ops.Concat(axis), *parts, facts=facts)


def slice_of_concat(draft: Draft) -> None:
    """Of one part, or from where a part begins to where one ends, or anywhere."""
    x = any_value(draft, least_rank=1)
    axis = draft.dice.below(x.type.rank)
    joint = several(draft, x, axis)
    dims = [part.type.shape[axis] for part in draft.instructions[-1].operands]
    first = draft.dice.below(len(dims))
    last = draft.dice.between(first, len(dims) - 1) if draft.dice.chance(0.6) else first
    starts, sizes = [0] * x.type.rank, list(joint.type.shape)
    starts[axis], sizes[axis] = sum(dims[:first]), sum(dims[first : last + 1])
    if sizes[axis] > 1 and draft.dice.chance(0.3):
        starts[axis], sizes[axis] = starts[axis] + 1, sizes[axis] - 1
    draft.emit(ops.Slice(tuple(starts), tuple(sizes)), joint, facts=draft.facts[joint])


def slice_of_pad(draft: Draft) -> None:
    """Of what was there before, or a little more or less."""
    x = any_value(draft, least_rank=1)
    padded = layout.pad(draft, x) if draft.dice.chance(0.3) else border(draft, x)
    op = draft.instructions[-1].op
    assert isinstance(op, ops.Pad)
    starts = [max(low, 0) for low in op.low]
    sizes = [
        max(min(dim, size - start), 0)
        for dim, size, start in zip(x.type.shape, padded.type.shape, starts, strict=True)
    ]
    if draft.dice.chance(0.3):
        starts = [max(start - 1, 0) for start in starts]
    draft.emit(ops.Slice(tuple(starts), tuple(sizes)), padded, facts=draft.facts[padded])


def border(draft: Draft, x: Value) -> Value:
    """`x` with a few zeros around, or the number of another time, or nothing."""
    sides = [[draft.dice.pick((0, 0, 1, 2)) for _ in x.type.shape] for _ in range(2)]
    if draft.dice.chance(0.2):
        sides = [
            [-min(side, dim // 2) for side, dim in zip(s, x.type.shape, strict=True)] for s in sides
        ]
    value = None
    if draft.dice.chance(0.4):
        number = draft.dice.pick((0.0, 1.0) if x.type.dtype.is_bool else (0.0, -0.0, 1.0))
        value = Scalar(Literal.full(number, x.type.dtype))
    facts = joined(draft.facts[x], Facts(1.0))
    return draft.emit(ops.Pad(tuple(sides[0]), tuple(sides[1]), None, value), x, facts=facts)


def slice_of_reverse(draft: Draft) -> None:
    """Of one element an axis, or of more."""
    x = any_value(draft, least_rank=1)
    turned = layout.reverse(draft, x)
    spans = [
        (draft.dice.below(dim), 1) if dim and draft.dice.chance(0.8) else (0, dim)
        for dim in x.type.shape
    ]
    starts, sizes = (tuple(span[part] for span in spans) for part in range(2))
    draft.emit(ops.Slice(starts, sizes), turned, facts=draft.facts[turned])


def concat_of_slices(draft: Draft) -> None:
    """Two or three parts of a tensor that were neighbours, more often than not."""
    x = any_value(draft, least_rank=1)
    size = max(x.type.shape)
    if size < 2:
        raise StepDeclined
    axis = x.type.shape.index(size)
    cuts = sorted(draft.dice.between(1, size - 1) for _ in range(draft.dice.between(1, 2)))
    if draft.dice.chance(0.2):
        cuts = draft.dice.shuffled(cuts)
    parts: list[Value] = []
    for start, end in zip([0, *cuts], [*cuts, size], strict=True):
        starts, sizes = [0] * x.type.rank, list(x.type.shape)
        starts[axis], sizes[axis] = start, max(end - start, 0)
        part = ops.Slice(tuple(starts), tuple(sizes))
        parts.append(draft.emit(part, x, facts=draft.facts[x]))
    draft.emit(ops.Concat(axis), *parts, facts=draft.facts[x])


def nested_concat(draft: Draft) -> None:
    """Along one axis, or along two."""
    x = any_value(draft, least_rank=1)
    axis = draft.dice.below(x.type.rank)
    inner = several(draft, x, axis)
    several(draft, inner, axis if draft.dice.chance(0.8) else draft.dice.below(x.type.rank))


def concat_of_one(draft: Draft) -> None:
    """Of a single value."""
    x = any_value(draft, least_rank=1)
    draft.emit(ops.Concat(draft.dice.below(x.type.rank)), x, facts=draft.facts[x])


def concat_of_empty(draft: Draft) -> None:
    """With an operand of size 0 somewhere, or nothing else."""
    x = any_value(draft, least_rank=1)
    axis = draft.dice.below(x.type.rank)
    shape = list(x.type.shape)
    shape[axis] = 0
    empty = draft.like(x.type.with_shape(tuple(shape)))
    several(draft, empty, axis)


def twice(move: Move) -> ExtraStep:
    """Bait of a move of a moved value."""

    def emit(draft: Draft) -> None:
        move(draft, move(draft, any_value(draft)))

    return emit


def once(move: Move) -> ExtraStep:
    """Bait of a moved value."""

    def emit(draft: Draft) -> None:
        move(draft, any_value(draft))

    return emit


def of_broadcast(move: Move) -> ExtraStep:
    """Bait of a move of a broadcast value."""

    def emit(draft: Draft) -> None:
        move(draft, repeated(draft, any_value(draft)))

    return emit


def tile_of_units(draft: Draft) -> None:
    """Of the dims of size 1, and sometimes of another."""
    x = any_value(draft, least_rank=1)
    repeats = [
        draft.dice.pick((0, 1, 2, 3)) if dim == 1 or draft.dice.chance(0.1) else 1
        for dim in x.type.shape
    ]
    draft.emit(ops.Tile(tuple(repeats)), x, facts=draft.facts[x])


def tile_once(draft: Draft) -> None:
    """Each axis once."""
    x = any_value(draft)
    draft.emit(ops.Tile((1,) * x.type.rank), x, facts=draft.facts[x])


def trimming_pad(draft: Draft) -> None:
    """A pad that takes away what it can."""
    x = any_value(draft, least_rank=1)
    low = [-draft.dice.between(0, dim) for dim in x.type.shape]
    high = [-draft.dice.between(0, dim + a) for dim, a in zip(x.type.shape, low, strict=True)]
    draft.emit(ops.Pad(tuple(low), tuple(high)), x, facts=draft.facts[x])


def pad_of_nothing(draft: Draft) -> None:
    """Zeros on both sides; something between where dims are 0 or 1, or not."""
    x = any_value(draft)
    zeros = (0,) * x.type.rank
    between = [1 if dim < 2 or draft.dice.chance(0.1) else 0 for dim in x.type.shape]
    interior = tuple(between) if draft.dice.chance(0.5) else None
    draft.emit(ops.Pad(zeros, zeros, interior), x, facts=draft.facts[x])


def patches_of_pad(draft: Draft) -> None:
    """Of a border around spatial axes, which may move or be split before there are patches."""
    x = any_value(draft, least_rank=3)
    rank = x.type.rank
    sides = [[0, *(draft.dice.pick((0, 1, 2)) for _ in range(rank - 2)), 0] for _ in range(2)]
    if draft.dice.chance(0.1):
        sides[0][draft.dice.pick((0, -1))] = 1
    value = draft.dice.pick((None, None, Scalar(Literal.full(1, x.type.dtype))))
    pad = ops.Pad(tuple(sides[0]), tuple(sides[1]), None, value)
    made = draft.emit(pad, x, facts=joined(draft.facts[x], Facts(1.0)))
    if draft.dice.chance(0.3):
        order = tuple(draft.dice.shuffled(range(rank)))
        made = draft.emit(ops.Transpose(order), made, facts=draft.facts[made])
    if draft.dice.chance(0.3):
        split = (1, *made.type.shape) if draft.dice.chance(0.5) else (*made.type.shape, 1)
        made = draft.emit(ops.Reshape(split), made, facts=draft.facts[made])
    window = tuple(draft.dice.pick((1, 1, 2)) for _ in made.type.shape[1:-1])
    padding = tuple(draft.dice.pick((0, 0, 1)) for _ in (*window, *window))
    op = ExtractPatches(window, None, padding if draft.dice.chance(0.5) else None)
    draft.emit(op, made, facts=draft.facts[made])


def reduced_broadcast(draft: Draft) -> None:
    """Over axes that were repeated, and sometimes over others."""
    dtype = draft.dice.pick([d for d in draft.palette if not d.is_complex] or [dtypes.i1])
    x = draft.operand(dtype, exact=True)
    wide = repeated(draft, x)
    lead = wide.type.rank - x.type.rank
    shape = (1,) * lead + x.type.shape
    axes = [axis for axis, dim in enumerate(shape) if dim == 1 and draft.dice.chance(0.7)]
    if draft.dice.chance(0.15) and shape:
        axes = sorted({*axes, draft.dice.below(len(shape))})
    if any(shape[axis] != 1 for axis in axes) and dtype.is_float:
        raise StepDeclined  # the sign of a zero would be open
    kinds = ("max", "min") if dtype.is_float else ("and", "or")
    kind = draft.dice.pick(kinds)
    op = Reduce(kind, tuple(axes), draft.dice.chance(0.5))
    draft.emit(op, wide, facts=draft.facts[x])


def spread_element(draft: Draft, x: Value) -> Value:
    """A reshape of an element that is repeated, or of a vector."""
    shape = (1,) * draft.dice.below(3) if draft.dice.chance(0.8) else (2,)
    one = draft.like(TensorType(x.type.dtype, shape))
    return layout.reshape(draft, repeated(draft, one))


def with_leading_dims(draft: Draft, x: Value) -> Value:
    """`x` with 1s in front, by a reshape or by a broadcast, and then a broadcast."""
    shape = ((1,) * draft.dice.below(3) + x.type.shape)[-5:]
    if shape[len(shape) - x.type.rank :] != x.type.shape:
        raise StepDeclined
    op = draft.dice.pick((ops.Reshape, ops.BroadcastTo))(shape)
    return repeated(draft, draft.emit(op, x, facts=draft.facts[x]))


BAIT: Sequence[ExtraStep] = (
    *[slice_of_concat] * 3,
    *[slice_of_pad] * 6,
    *[slice_of_reverse] * 4,
    *[concat_of_slices] * 3,
    *[nested_concat] * 4,
    *[concat_of_one] * 3,
    concat_of_empty,
    *[tile_of_units] * 4,
    tile_once,
    *[trimming_pad] * 2,
    pad_of_nothing,
    *[patches_of_pad] * 6,
    *[reduced_broadcast] * 4,
    *[twice(layout.slice_)] * 5,
    *[twice(layout.tile)] * 7,
    *[twice(layout.reverse)] * 6,
    *[twice(layout.transpose)] * 6,
    *[twice(border)] * 8,
    *[once(whole)] * 2,
    *[once(layout.reshape)] * 3,
    *[once(spread_element)] * 5,
    *[once(with_leading_dims)] * 2,
    *[of_broadcast(layout.transpose)] * 3,
    of_broadcast(layout.slice_),
    *[of_broadcast(layout.reverse)] * 3,
)
"""Each writes a few instructions, the last of which is what a rewrite looks for; a bait stands here
as often as it takes for the rewrite to fire as often as others."""
