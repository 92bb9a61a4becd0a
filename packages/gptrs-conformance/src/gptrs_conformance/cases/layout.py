"""Cases of the ops that move elements: each element fetched from where the definition says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops import layout as ops
from gptrs.ir.ops.creation import Constant, Iota
from gptrs_conformance.cases.elementwise_choices import SHAPES, edges, storage
from gptrs_conformance.exact_values import Index, collected, edge_operand, plain, wide
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import sample

RESHAPES: tuple[tuple[str, Index, Index, Index], ...] = (
    ("rank 2 to 3", (4, 6), (2, 4, 3), (2, 4, 3)),
    ("inferred dim", (3, 4), (2, -1), (2, 6)),
    ("rank 0", (), (), ()),
    ("rank 0 to 2", (), (1, 1), (1, 1)),
    ("one element to rank 0", (1, 1), (), ()),
    ("empty", (0, 3), (7, 0), (7, 0)),
    ("empty, inferred", (0, 3), (-1, 3), (0, 3)),
    ("rank 5 to 1", (2, 1, 3, 1, 5), (30,), (30,)),
)
TRANSPOSES: tuple[tuple[str, Index, Index], ...] = (
    ("rank 2", (3, 5), (1, 0)),
    ("rotation", (2, 3, 5), (1, 2, 0)),
    ("other rotation", (2, 3, 5), (2, 0, 1)),
    ("identity", (2, 3), (0, 1)),
    ("rank 0", (), ()),
    ("empty", (2, 0, 3), (2, 1, 0)),
    ("rank 5", (2, 1, 3, 2, 5), (3, 0, 4, 1, 2)),
)
BROADCASTS: tuple[tuple[str, Index, Index], ...] = (
    ("new axis", (3,), (2, 3)),
    ("size 1", (3, 1), (3, 5)),
    ("both", (1, 3, 1), (2, 4, 3, 5)),
    ("rank 0", (), (2, 3)),
    ("rank 0 to itself", (), ()),
    ("to nothing", (1, 3), (0, 3)),
    ("of nothing", (0, 1), (2, 0, 3)),
    ("as it is", (2, 3), (2, 3)),
)
SLICES: tuple[tuple[str, Index, Index, Index, Index | None], ...] = (
    ("steps", (7, 9), (1, 0), (3, 3), (2, 4)),
    ("block", (5, 7), (2, 3), (2, 4), None),
    ("whole", (5, 3), (0, 0), (5, 3), (1, 1)),
    ("rank 0", (), (), (), None),
    ("nothing at the end", (5,), (5,), (0,), None),
    ("of nothing", (0, 3), (0, 1), (0, 2), None),
    ("last element, long step", (6,), (5,), (1,), (7,)),
    ("rank 4", (2, 3, 4, 5), (1, 0, 1, 0), (1, 3, 2, 2), (1, 1, 2, 3)),
)
CONCATS: tuple[tuple[str, tuple[Index, ...], int], ...] = (
    ("last axis", ((2, 3), (2, 1), (2, 4)), 1),
    ("first axis", ((2, 3), (5, 3)), 0),
    ("one operand", ((3, 2),), 1),
    ("some empty", ((3,), (0,), (2,), (0,)), 0),
    ("all empty", ((0, 2), (0, 3)), 1),
    ("rank 4", ((2, 1, 3, 2), (2, 4, 3, 2)), 1),
)
PADS: tuple[tuple[str, Index, Index, Index, Index | None], ...] = (
    ("all attributes", (3, 4), (1, 2), (2, 0), (2, 1)),
    ("ends", (2, 3), (1, 0), (0, 2), None),
    ("trimmed", (5, 6), (-1, 2), (-2, -3), None),
    ("trimmed between", (4,), (-2,), (-3,), (3,)),
    ("trimmed away", (3, 2), (-3, 0), (0, 0), None),
    ("trimmed past the end", (3,), (-5,), (9,), None),
    ("trimmed past the start", (3,), (7,), (-8,), (1,)),
    ("far away", (3,), (-(2**62),), (2**62,), None),
    ("rank 0", (), (), (), None),
    ("of nothing", (0, 2), (2, 1), (1, 0), (5, 0)),
    ("one element, wide gaps", (1,), (1,), (1,), (2**40,)),
    ("rank 4", (2, 1, 2, 3), (0, 1, 0, -1), (1, 0, 0, 1), (0, 4, 1, 0)),
)
TILES: tuple[tuple[str, Index, Index], ...] = (
    ("both axes", (2, 3), (3, 2)),
    ("once", (2, 3), (1, 1)),
    ("zero times", (2, 3), (2, 0)),
    ("rank 0", (), ()),
    ("of nothing", (0, 2), (3, 2)),
    ("rank 4", (2, 1, 3, 2), (1, 3, 2, 1)),
)
REVERSALS: tuple[tuple[str, Index, Index], ...] = (
    ("one axis", (4, 3), (0,)),
    ("both axes", (4, 3), (0, 1)),
    ("no axes", (3,), ()),
    ("rank 0", (), ()),
    ("of nothing", (2, 0), (0, 1)),
    ("rank 4", (2, 3, 2, 5), (1, 3)),
)


def moved(
    op: Op, x: np.ndarray, shape: Index, source: Callable[[Index], Index], label: str
) -> OpCase:
    """The case in which `source` gives the element of `x` for each position of the result."""
    values = plain(x)
    expected = collected(shape, lambda position: values[source(position)])
    return OpCase(op, (x,), (wide(expected, dtypes.from_numpy(x.dtype)),), label=label)


def number_of(position: Index, shape: Index) -> int:
    """Return how many elements precede the one at `position` in row-major order."""
    return sum(at * math.prod(shape[axis + 1 :]) for axis, at in enumerate(position))


def position_of(number: int, shape: Index) -> Index:
    """The inverse of `number_of`."""
    return tuple(number // math.prod(shape[n + 1 :]) % dim for n, dim in enumerate(shape))


@rows(ops.Reshape, dtypes=dtypes.ALL)
def reshape(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ranks up and down, an inferred dim, no elements, an operand in column order."""
    del op_class
    for label, shape, target, result in RESHAPES:
        x = edge_operand(dtype, shape, rng)
        yield _reshaped(ops.Reshape(target), x, result, label)
    # A backend that takes the memory as it lies would give the elements in another order.
    x = np.asfortranarray(edge_operand(dtype, (3, 4), rng))
    yield _reshaped(ops.Reshape((2, 6)), x, (2, 6), "operand in column order")


def _reshaped(op: ops.Reshape, x: np.ndarray, result: Index, label: str) -> OpCase:
    return moved(
        op, x, result, lambda position: position_of(number_of(position, result), x.shape), label
    )


@rows(ops.Transpose, dtypes=dtypes.ALL)
def transpose(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Permutations that are their own inverse and ones that are not."""
    del op_class
    for label, shape, permutation in TRANSPOSES:
        x = edge_operand(dtype, shape, rng)
        result = tuple(shape[axis] for axis in permutation)

        # A default binds this permutation: the function is called after the loop has moved on.
        def source(position: Index, permutation: Index = permutation) -> Index:
            return tuple(position[permutation.index(axis)] for axis in range(len(position)))

        yield moved(ops.Transpose(permutation), x, result, source, label)


@rows(ops.BroadcastTo, dtypes=dtypes.ALL)
def broadcast_to(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """New axes, axes of one element, and none of either."""
    del op_class
    for label, shape, target in BROADCASTS:
        x = edge_operand(dtype, shape, rng)

        def source(position: Index, shape: Index = shape) -> Index:
            aligned = position[len(position) - len(shape) :]
            return tuple(at if dim > 1 else 0 for at, dim in zip(aligned, shape, strict=True))

        yield moved(ops.BroadcastTo(target), x, target, source, label)


@rows(ops.Slice, dtypes=dtypes.ALL)
def slice_(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Blocks, steps, blocks of nothing."""
    del op_class
    for label, shape, starts, sizes, strides in SLICES:
        x = edge_operand(dtype, shape, rng)
        steps = strides or (1,) * len(shape)

        def source(position: Index, starts: Index = starts, steps: Index = steps) -> Index:
            parts = zip(starts, position, steps, strict=True)
            return tuple(start + at * step for start, at, step in parts)

        yield moved(ops.Slice(starts, sizes, strides), x, sizes, source, label)


@rows(ops.Concat, dtypes=dtypes.ALL)
def concat(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """One operand and several, some of them or all without elements."""
    del op_class
    for label, shapes, axis in CONCATS:
        parts = tuple(edge_operand(dtype, shape, rng) for shape in shapes)
        total = sum(shape[axis] for shape in shapes)
        # Of Python objects: they hold every type exactly, with 64-bit integers and NaN alike.
        expected = np.zeros((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), object)
        offset = 0
        for part in parts:
            values = plain(part)
            for position in np.ndindex(*part.shape):
                to = (*position[:axis], position[axis] + offset, *position[axis + 1 :])
                expected[to] = values[position]
            offset += part.shape[axis]
        yield OpCase(ops.Concat(axis), parts, (wide(expected, dtype),), label=label)


@rows(ops.Pad, dtypes=dtypes.ALL)
def pad(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Both ends, between, trimmed, with the default value and with others."""
    del op_class
    for number, (label, shape, low, high, interior) in enumerate(PADS):
        x = edge_operand(dtype, shape, rng)
        # Every other one without a value: absent is a case of its own.
        yield _padded(ops.Pad(low, high, interior, None if number % 2 else _fill(dtype)), x, label)
    if dtype.is_float:
        x = edge_operand(dtype, (2,), rng)
        # These two are lost where padding is a sum with zeros, or a comparison.
        for value in (-0.0, math.nan):
            op = ops.Pad((1,), (1,), value=Scalar(Literal.full(value, dtype)))
            yield _padded(op, x, f"value {value}")


def _padded(op: ops.Pad, x: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    gaps = op.interior or (0,) * x.ndim
    shape = tuple(
        low + dim + gap * max(dim - 1, 0) + high
        for low, dim, gap, high in zip(op.low, x.shape, gaps, op.high, strict=True)
    )
    fill = False if dtype.is_bool else 0
    expected = np.full(shape, fill if op.value is None else plain(op.value.array).item(), object)
    values = plain(x)
    for position in np.ndindex(*x.shape):
        to = tuple(
            low + at * (gap + 1) for low, at, gap in zip(op.low, position, gaps, strict=True)
        )
        # Negative widths put elements outside: these are dropped, not clamped.
        if all(0 <= at < size for at, size in zip(to, shape, strict=True)):
            expected[to] = values[position]
    return OpCase(op, (x,), (wide(expected, dtype),), label=label)


def _fill(dtype: DType) -> Scalar:
    value = True if dtype.is_bool else -2.5 if dtype.is_float else 7
    return Scalar(Literal.full(value, dtype))


@rows(ops.Tile, dtypes=dtypes.ALL)
def tile(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Several times, once, not at all."""
    del op_class
    for label, shape, repeats in TILES:
        x = edge_operand(dtype, shape, rng)
        result = tuple(dim * count for dim, count in zip(shape, repeats, strict=True))

        def source(position: Index, shape: Index = shape) -> Index:
            return tuple(at % dim for at, dim in zip(position, shape, strict=True))

        yield moved(ops.Tile(repeats), x, result, source, label)


@rows(ops.Reverse, dtypes=dtypes.ALL)
def reverse(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Along one axis, several and none."""
    del op_class
    for label, shape, axes in REVERSALS:
        x = edge_operand(dtype, shape, rng)

        def source(position: Index, shape: Index = shape, axes: Index = axes) -> Index:
            dims = enumerate(zip(position, shape, strict=True))
            return tuple(dim - 1 - at if axis in axes else at for axis, (at, dim) in dims)

        yield moved(ops.Reverse(axes), x, shape, source, label)


# Cases of the ops that make a tensor from attributes only.


@rows(Constant, dtypes=dtypes.ALL)
def constant(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Edges, every kind of shape, and one element repeated."""
    arrays = [("edges", edges(dtype))]
    arrays += [(f"shape {list(shape)}", sample(dtype, shape, 1)) for shape in SHAPES]
    arrays.append(("one element repeated", np.full((3, 4), sample(dtype, (), 2)[()], dtype.numpy)))
    for label, array in arrays:
        yield OpCase(Constant(Literal.of(array)), (), (storage(array),), label=label)


@rows(Iota, dtypes=(*dtypes.INTEGERS, *dtypes.FLOATS))
def iota(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Each axis, no elements, and the last index that the type holds exactly."""
    shapes = [((5,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 1, 4), 2), ((2, 0, 3), 2), ((0,), 0)]
    longest = 9 if dtype is dtypes.f8e5m2 else 8 if dtype.bits == 4 else 17
    for shape, axis in (*shapes, ((longest if dtype.bits < 16 else 200,), 0)):
        steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        expected = np.broadcast_to(steps, shape)
        if dtype.is_float:
            expected = expected.astype(np.float64)
        yield OpCase(Iota(shape, axis, dtype), (), (expected,), label=f"{list(shape)} by {axis}")
