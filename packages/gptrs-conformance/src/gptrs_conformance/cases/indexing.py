"""Cases of the ops that read or write at positions given by another tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Literal, TypeAlias

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import indexing as ops
from gptrs.ir.ops.indexing import ScatterReduce, SegmentReduce
from gptrs_conformance.exact_values import (
    Index,
    absorbing_values,
    collected,
    combined,
    edge_operand,
    exact_but_complex,
    exact_operand,
    kinds_of,
    plain,
    wide,
)
from gptrs_conformance.numerics import integer_range
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, integers

TAKES: tuple[tuple[str, Index, Index], ...] = (
    ("rows", (5, 3), (4,)),
    ("elements", (7,), (2, 3)),
    ("one row", (5, 3), ()),
    ("one element", (1,), ()),
    ("no rows", (5, 3), (2, 0)),
    ("empty rows", (5, 0, 2), (3,)),
    ("no row of nothing", (0, 3), (0,)),
    ("rank 4", (3, 2, 1, 4), (2, 2)),
)
GATHERS: tuple[tuple[str, Index, Index, int], ...] = (
    ("last axis", (3, 5), (3, 4), 1),
    ("first axis, part of the other", (5, 4), (7, 2), 0),
    ("vector", (6,), (9,), 0),
    ("nothing", (3, 4), (0, 4), 1),
    ("nothing of nothing", (0, 4), (0, 3), 1),
    ("one element", (1, 1), (1, 3), 1),
    ("middle of rank 4", (2, 5, 1, 3), (1, 2, 1, 3), 1),
)
BLOCKS: tuple[tuple[str, Index, Index, tuple[int, ...]], ...] = (
    ("inside", (5, 6), (2, 3), (1, 2)),
    ("up to the end", (5,), (2,), (3,)),
    ("past the end", (5,), (2,), (4,)),
    ("before the start", (5, 4), (2, 3), (-1, -7)),
    ("rank 0", (), (), ()),
    ("all", (3, 4), (3, 4), (2, 2)),
    ("nothing", (5, 3), (0, 3), (7, 0)),
    ("of nothing", (0, 3), (0, 2), (1, 1)),
    ("rank 4", (2, 3, 1, 5), (1, 2, 1, 3), (1, 0, 0, 1)),
)
FAR: tuple[tuple[DType, int], ...] = (
    (dtypes.si64, 2**63 - 1),
    (dtypes.si64, -(2**63)),
    (dtypes.ui64, 2**64 - 1),
    (dtypes.si4, -8),
)
"""Starts as far outside as their type goes."""

OUTSIDE: tuple[tuple[DType, int], ...] = (
    (dtypes.si64, -1),
    (dtypes.si32, 5),
    (dtypes.ui8, 200),
    (dtypes.ui64, 2**64 - 2),
    (dtypes.si4, -8),
)
"""Indices that an axis of 5 does not have."""


def positions(rng: np.random.Generator, shape: Index, size: int, dtype: DType) -> np.ndarray:
    """Indices in [0, size), as far as the type holds them."""
    # A narrow type cannot hold the positions of a long axis.
    limit = max(min(size, integer_range(dtype)[1] + 1), 1)
    return np.asarray(rng.integers(0, limit, shape)).astype(dtype.numpy)


def index_types(dtype: DType) -> Iterator[DType]:
    """si64, then the integer types over and over, another one first for each element type."""
    # Rotated: all pairs of element and index types would be many times as many cases.
    start = dtypes.ALL.index(dtype) % len(dtypes.INTEGERS)
    return chain((dtypes.si64,), cycle(dtypes.INTEGERS[start:] + dtypes.INTEGERS[:start]))


@rows(ops.Take, dtypes=dtypes.ALL)
def take(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Rows and elements by indices of every type; indices outside."""
    del op_class
    for (label, shape, rows_), index_type in zip(TAKES, index_types(dtype), strict=False):
        x = edge_operand(dtype, shape, rng)
        indices = positions(rng, rows_, shape[0], index_type)
        values, at = plain(x), plain(indices)
        count = len(rows_)
        expected = collected(
            (*rows_, *shape[1:]),
            lambda position, v=values, at=at, n=count: v[(at[position[:n]], *position[n:])],
        )
        yield OpCase(ops.Take(), (x, indices), (wide(expected, dtype),), label=label)
    x = edge_operand(dtype, (5, 2), rng)
    for index_type, index in OUTSIDE:
        indices = integers([0, 4, index, 1], index_type)
        yield OpCase(ops.Take(), (x, indices), (), label=f"index {index}", error=f"index {index}")
    indices = integers([0], dtypes.si64)
    yield OpCase(ops.Take(), (x[:0], indices), (), label="index of nothing", error="index 0")


@rows(ops.Gather, dtypes=dtypes.ALL)
def gather(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every axis, all and part of the others, indices of every type; indices outside."""
    del op_class
    for (label, shape, read, axis), index_type in zip(GATHERS, index_types(dtype), strict=False):
        x = edge_operand(dtype, shape, rng)
        indices = positions(rng, read, shape[axis], index_type)
        values, at = plain(x), plain(indices)
        expected = collected(
            read,
            lambda position, v=values, at=at, a=axis: v[
                (*position[:a], at[position], *position[a + 1 :])
            ],
        )
        yield OpCase(ops.Gather(axis), (x, indices), (wide(expected, dtype),), label=label)
    x = edge_operand(dtype, (2, 5), rng)
    for index_type, index in OUTSIDE:
        indices = integers([0, 4, index, 1], index_type).reshape(2, 2)
        yield OpCase(
            ops.Gather(1), (x, indices), (), label=f"index {index}", error=f"index {index}"
        )


def block_indices(shape: Index, sizes: Index, starts: tuple[int, ...]) -> list[tuple[Index, Index]]:
    """Each position in a block with its position in the whole, the starts clamped."""
    at = [
        min(max(start, 0), dim - size)
        for start, dim, size in zip(starts, shape, sizes, strict=True)
    ]
    return [
        (position, tuple(first + inside for first, inside in zip(at, position, strict=True)))
        for position in np.ndindex(*sizes)
    ]


def blocks(dtype: DType) -> Iterator[tuple[str, Index, Index, tuple[int, ...], np.ndarray]]:
    """The rows of BLOCKS with starts of every type that holds them, then those of FAR."""
    types = index_types(dtype)
    for label, shape, sizes, starts in BLOCKS:
        fitting = (
            index_type
            for index_type in types
            if not starts or integer_range(index_type)[0] <= min(starts)
        )
        yield label, shape, sizes, starts, integers(list(starts), next(fitting))
    for index_type, start in FAR:
        starts = (start, 1)
        label = f"from {start} of {index_type}"
        yield label, (5, 4), (2, 3), starts, integers(list(starts), index_type)


@rows(ops.DynamicSlice, dtypes=dtypes.ALL)
def dynamic_slice(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Blocks inside, clamped at either end, of everything and of nothing."""
    del op_class
    for label, shape, sizes, starts, array in blocks(dtype):
        x = edge_operand(dtype, shape, rng)
        values = plain(x)
        expected = np.zeros(sizes, object)
        for position, source in block_indices(shape, sizes, starts):
            expected[position] = values[source]
        yield OpCase(ops.DynamicSlice(sizes), (x, array), (wide(expected, dtype),), label=label)


@rows(ops.DynamicUpdateSlice, dtypes=dtypes.ALL)
def dynamic_update_slice(
    op_class: type[Op], dtype: DType, rng: np.random.Generator
) -> Iterator[OpCase]:
    """The same blocks written."""
    del op_class
    for label, shape, sizes, starts, array in blocks(dtype):
        x, update = edge_operand(dtype, shape, rng), edge_operand(dtype, sizes, rng)
        expected, values = np.array(plain(x)), plain(update)
        for position, target in block_indices(shape, sizes, starts):
            expected[target] = values[position]
        inputs = (x, update, array)
        yield OpCase(ops.DynamicUpdateSlice(), inputs, (wide(expected, dtype),), label=label)


# Cases of the ops that combine elements at positions given by another tensor.


ScatterKind: TypeAlias = Literal["add", "mul", "max", "min", "replace"]

SCATTERS: tuple[tuple[str, Index, Index, int], ...] = (
    ("last axis", (3, 5), (3, 4), 1),
    ("first axis, part of the other", (5, 4), (9, 2), 0),
    ("vector", (3,), (6,), 0),
    ("middle of rank 4", (2, 3, 1, 2), (1, 5, 1, 2), 1),
    ("no updates", (3, 4), (0, 4), 0),
    ("of nothing", (3, 0), (2, 0), 0),
    ("all to one", (1, 2), (4, 2), 0),
)
SEGMENTS: tuple[tuple[str, Index, int], ...] = (
    ("rows", (8, 3), 4),
    ("elements", (9,), 5),
    ("one segment", (4, 2), 1),
    ("no rows", (0, 3), 2),
    ("no segments", (0, 3), 0),
    ("empty rows", (3, 0), 2),
    ("rank 4", (5, 2, 1, 2), 3),
)
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def scattered(x: np.ndarray, at: np.ndarray, updates: np.ndarray, op: ScatterReduce) -> np.ndarray:
    """Return what `scatter_reduce` must give, before floats are rounded to the result type."""
    dtype = dtypes.from_numpy(x.dtype)
    values, new, numbers = plain(x), plain(updates), plain(at)
    met: dict[Index, list[complex]] = {}
    for position in np.ndindex(*updates.shape):
        to = (*position[: op.axis], int(numbers[position]), *position[op.axis + 1 :])
        met.setdefault(to, [values.item(to)]).append(new.item(position))
    for to, listed in met.items():
        replaces = op.kind == "replace"
        values[to] = listed[-1] if replaces else combined(REDUCTIONS[op.kind], listed, dtype)
    return wide(values, dtype)


def _scatter(
    op: ScatterReduce, x: np.ndarray, at: np.ndarray, updates: np.ndarray, label: str
) -> OpCase:
    tolerance = exact_but_complex(dtypes.from_numpy(x.dtype))
    expected = scattered(x, at, updates, op)
    return OpCase(op, (x, at, updates), (expected,), tolerance, f"{label}, {op.kind}")


@rows(ScatterReduce, dtypes=dtypes.ALL)
def scatter_reduce(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind with indices that repeat, the edge shapes, accumulation, indices outside."""
    del op_class
    kinds: tuple[ScatterKind, ...] = ("replace",)
    if not dtype.is_bool:
        kinds = (*kinds, "add", "mul")
    if dtype.is_integer or dtype.is_float:
        kinds = (*kinds, "max", "min")
    label, shape, written, axis = SCATTERS[0]
    for kind, index_type in zip(kinds, index_types(dtype), strict=False):
        x, updates = exact_operand(dtype, shape, rng), exact_operand(dtype, written, rng)
        # Two positions for four updates: some of them meet.
        at = positions(rng, written, 2, index_type)
        yield _scatter(ScatterReduce(axis, kind), x, at, updates, label)
    for number, (label, shape, written, axis) in enumerate(SCATTERS[1:]):
        kind = kinds[number % len(kinds)]
        x, updates = exact_operand(dtype, shape, rng), exact_operand(dtype, written, rng)
        at = positions(rng, written, shape[axis], dtypes.si64)
        yield _scatter(ScatterReduce(axis, kind), x, at, updates, label)
    x, updates = edge_operand(dtype, (7,), rng), edge_operand(dtype, (9,), rng)
    at = positions(rng, (9,), 7, dtypes.si32)
    yield _scatter(ScatterReduce(0, "replace"), x, at, updates, "edge values")
    if dtype.is_float:
        yield from _scattered_floats(dtype)
    x = exact_operand(dtype, (2, 5), rng)
    for index_type, index in OUTSIDE:
        at = integers([0, 4, index, 1], index_type).reshape(2, 2)
        inputs = (x, at, x[:, :2])
        op = ScatterReduce(1, kinds[-1])
        yield OpCase(op, inputs, (), label=f"index {index}", error=f"index {index}")


def _scattered_floats(dtype: DType) -> Iterator[OpCase]:
    x = as_float(np.array([1.0, math.nan, -math.inf, 2.0, math.inf]), dtype)
    updates = as_float(np.array([math.nan, 3.0, 4.0, 5.0, math.nan]), dtype)
    at = integers([0, 1, 2, 3, 4], dtypes.si32)
    for kind in ("max", "min", "add"):
        yield _scatter(ScatterReduce(0, kind), x, at, updates, "not finite")
    values = absorbing_values(dtype)
    if dtype.bits <= 16:
        at = integers([0] * (len(values) - 1), dtypes.si32)
        yield _scatter(ScatterReduce(0, "add"), values[:1], at, values[1:], "accumulated in f32")


@rows(SegmentReduce, dtypes=tuple(dtype for dtype in dtypes.ALL if not dtype.is_bool))
def segment_reduce(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every kind, ids in any order and of every type, empty segments, ids outside."""
    del op_class
    kinds = kinds_of(dtype)
    types = index_types(dtype)
    for kind in kinds:
        x = exact_operand(dtype, (8, 3), rng)
        ids = integers([3, 0, 3, 1, 0, 0, 3, 1], next(types))
        yield _segments(SegmentReduce(kind, 5), x, ids, "unsorted, two of them empty")
    for number, (label, shape, count) in enumerate(SEGMENTS):
        x = exact_operand(dtype, shape, rng)
        ids = positions(rng, shape[:1], count, next(types))
        yield _segments(SegmentReduce(kinds[number % len(kinds)], count), x, ids, label)
    if dtype.is_float:
        yield from _float_segments(dtype)
    x = exact_operand(dtype, (4, 2), rng)
    for index_type, index in OUTSIDE:
        ids = integers([0, 4, index, 1], index_type)
        op = SegmentReduce(kinds[-1], 5)
        yield OpCase(op, (x, ids), (), label=f"id {index}", error=f"index {index}")
    ids = integers([0], dtypes.si64)
    yield OpCase(
        SegmentReduce("sum", 0), (x[:1], ids), (), label="id of no segment", error="index 0"
    )


def _segments(op: SegmentReduce, x: np.ndarray, ids: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    values, numbers = plain(x), plain(ids)

    def total(position: Index) -> complex:
        column = values[(slice(None), *position[1:])]
        return combined(op.kind, column[numbers == position[0]], dtype)

    expected = wide(collected((op.num_segments, *x.shape[1:]), total), dtype)
    tolerance = exact_but_complex(dtype)
    return OpCase(op, (x, ids), (expected,), tolerance, f"{label}, {op.kind}")


def _float_segments(dtype: DType) -> Iterator[OpCase]:
    x = as_float(np.array([1.0, math.nan, -math.inf, 2.0, 4.0, math.inf]), dtype)
    ids = integers([0, 0, 1, 1, 2, 2], dtypes.si32)
    for kind in ("max", "min", "sum"):
        yield _segments(SegmentReduce(kind, 3), x, ids, "not finite")
    if dtype.bits <= 16:
        values = absorbing_values(dtype)
        ids = integers([0] * len(values), dtypes.ui8)
        yield _segments(SegmentReduce("sum", 1), values, ids, "accumulated in f32")
