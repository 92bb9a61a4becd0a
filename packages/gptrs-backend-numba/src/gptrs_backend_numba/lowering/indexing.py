"""Indexing ops: indices are brought to int64, `dynamic_update_slice` works in place if it may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import indexing as indexing_ops
from gptrs.ir.ops import random as ops
from gptrs.ir.ops import sorting as sorting_ops
from gptrs.ir.program import Instruction
from gptrs.ir.size_guards import Shape, greatest, least
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.machine import NUMBERS
from gptrs_backend_numba.kernels import indexing as indexing_kernels
from gptrs_backend_numba.kernels import random as kernels
from gptrs_backend_numba.kernels import reduction as reduction_kernels
from gptrs_backend_numba.lowering.reduction import identity
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Explain, Read, ScheduleBuilder, operand_types
from gptrs_backend_numba.views import View, dense_strides, lines, merged_axes


@TABLE.register(indexing_ops.Take, dtypes=MOVABLE)
def take(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy rows one by one, after all indices have been checked."""
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    row = View(x.storage, x.dtype, x.shape[1:], x.strides[1:])
    *axes, (length, (stride,)) = _axes(row.shape, row.strides)
    geometry = [indices.size, x.shape[0], x.strides[0]]
    geometry += [math.prod(size for size, _ in axes), len(axes), length, stride, *_flat(axes, 0)]
    kernel = compiled(indexing_kernels.take(x.dtype.itemsize))
    reads = (x, positions(builder, indices))
    explain = out_of_range(unit.last, indices, 0, x.shape[0])
    builder.call(kernel, reads, out, geometry, explain)


@TABLE.register(indexing_ops.Gather, dtypes=MOVABLE)
def gather(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy elements one by one, after all indices have been checked."""
    op = unit.last.op
    assert isinstance(op, indexing_ops.Gather)
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    geometry = [indices.size, x.shape[op.axis], x.strides[op.axis], len(x.shape)]
    for axis, (size, stride) in enumerate(zip(indices.shape, x.strides, strict=True)):
        geometry += [size, 0 if axis == op.axis else stride]
    kernel = compiled(indexing_kernels.gather(x.dtype.itemsize))
    reads = (x, positions(builder, indices))
    explain = out_of_range(unit.last, indices, op.axis, x.shape[op.axis])
    builder.call(kernel, reads, out, geometry, explain)


@TABLE.register(indexing_ops.DynamicSlice, dtypes=MOVABLE)
def dynamic_slice(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy a block out of the operand; bind the operand itself if it is the whole block."""
    x, starts = (builder.view(value) for value in unit.last.operands)
    result = unit.last.result
    if x.shape == result.type.shape:
        builder.bind(result, x)
        return
    _move(builder, x, builder.define(result), starts, into=False)


@TABLE.register(indexing_ops.DynamicUpdateSlice, dtypes=MOVABLE)
def dynamic_update_slice(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy a block into the operand if its memory is free after this, else into a copy of it."""
    x, update, starts = (builder.view(value) for value in unit.last.operands)
    result = unit.last.result
    if x.shape == update.shape:
        builder.bind(result, update)
        return
    if builder.may_overwrite(x) and x.storage not in (update.storage, starts.storage):
        builder.bind(result, x)
        target = x
    else:
        target = builder.define(result)
        builder.copy(x, target)
    _move(builder, update, target, starts, into=True)


def _move(
    builder: ScheduleBuilder, source: View, target: View, starts: View, *, into: bool
) -> None:
    """Copy `source` into a block of `target`, or a block of `source` to `target`."""
    large, block = (target, source.shape) if into else (source, target.shape)
    if math.prod(block) == 0:
        return
    rank = len(block)
    geometry = [rank, math.prod(block[:-1]), block[-1]]
    for size, dim, stride in zip(block, large.shape, large.strides, strict=True):
        geometry += [dim - size, stride]
    geometry += [source.strides[-1], target.strides[-1]]
    for view in (source, target):
        for size, stride in zip(block[:-1], view.strides[:-1], strict=True):
            geometry += [size, stride]
    kernel = compiled(indexing_kernels.move(source.dtype.itemsize, into=into))
    builder.call(kernel, (source, positions(builder, starts)), target, geometry)


def positions(builder: ScheduleBuilder, indices: View) -> View:
    """Return indices of any integer type as contiguous si64; those beyond it stay out of range."""
    return builder.converted(indices, dtypes.si64)


def _axes(shape: Shape, strides: Shape) -> list[tuple[int, tuple[int, ...]]]:
    if 0 in shape:
        return [(0, (1,))]
    return merged_axes(shape, [strides]) or [(1, (1,))]


def _flat(axes: Sequence[tuple[int, tuple[int, ...]]], tensor: int) -> list[int]:
    return [number for size, strides in axes for number in (size, strides[tensor])]


def out_of_range(instruction: Instruction, indices: View, axis: int, size: int) -> Explain:
    """Return a function that states, from the memory of a run, which index is not one of `axis`."""

    def explain(read: Read) -> str:
        operands, (length,) = operand_types(instruction, read), read.shape((size,))
        found = (int(index) for index in read(indices).reshape(-1))
        wrong = next(index for index in found if not 0 <= index < length)
        return (
            f"`{instruction.op.name}` of {operands}: index {wrong} is out of range "
            f"for axis {axis} of size {length}"
        )

    return explain


# `scatter_reduce` and `segment_reduce`: rows of updates walked in order, never in parallel.
#
# Floats of 8 and 16 bits are combined in f32 and rounded at the end.


_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""The reduction that each kind of `scatter_reduce` but `replace` is a part of."""


@TABLE.register(indexing_ops.ScatterReduce, dtypes=MOVABLE)
def scatter_reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Combine into the operand if its memory is free after this, else into a copy of it."""
    op = unit.last.op
    assert isinstance(op, indexing_ops.ScatterReduce)
    x, indices, updates = (builder.view(value) for value in unit.last.operands)
    result = unit.last.result
    if updates.size == 0:
        builder.bind(result, x)
        return
    accumulator = x.dtype if op.kind == "replace" else x.dtype.accumulator
    if accumulator is not x.dtype:
        total = builder.converted(x, accumulator)
    elif builder.may_overwrite(x) and not _shared(x, indices, updates):
        total = x
    else:
        total = builder.fresh(x.dtype, x.shape)
        builder.copy(x, total)
    _scatter(builder, unit, indices, updates, total)
    builder.bind(result, builder.converted(total, x.dtype))


@TABLE.register(indexing_ops.SegmentReduce, dtypes=NUMBERS)
def segment_reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Scatter rows into a tensor of identities."""
    op = unit.last.op
    assert isinstance(op, indexing_ops.SegmentReduce)
    x, ids = (builder.view(value) for value in unit.last.operands)
    accumulator = x.dtype.accumulator
    total = builder.fresh(accumulator, unit.last.result.type.shape)
    builder.copy(_filler(builder, op.kind, x.dtype, accumulator).broadcast(total.shape), total)
    _scatter(builder, unit, ids, x, total)
    builder.bind(unit.last.result, builder.converted(total, x.dtype))


def _shared(x: View, *others: View) -> bool:
    return any(x.storage.root is other.storage.root for other in others)


def _filler(builder: ScheduleBuilder, kind: str, dtype: DType, accumulator: DType) -> View:
    """Return the result of a segment without rows: a value of `dtype`, held in `accumulator`."""
    view = builder.constant(np.array(identity(kind, dtype)).astype(accumulator.numpy))
    return replace(view, dtype=accumulator)


def _scatter(
    builder: ScheduleBuilder, unit: Unit, indices: View, updates: View, total: View
) -> None:
    op = unit.last.op
    if isinstance(op, indexing_ops.SegmentReduce):
        axis, kind = 0, op.kind
    else:
        assert isinstance(op, indexing_ops.ScatterReduce)
        axis, kind = op.axis, _KINDS.get(op.kind)
    wide = positions(builder, indices)
    numbers = [indices.size, total.shape[axis], total.strides[axis]]
    if kind is None:
        kernel = indexing_kernels.replace(updates.dtype.itemsize)
    else:
        kernel = indexing_kernels.combine(kind, updates.dtype, total.dtype)
    explain = out_of_range(unit.last, indices, axis, total.shape[axis])
    walk = _walk(updates, wide, total, axis)
    builder.call(compiled(kernel), (updates, wide), total, [*numbers, *walk], explain)


def _walk(updates: View, indices: View, total: View, axis: int) -> list[int]:
    """Return the geometry that `kernels.scatter_kernel` reads; each index is for a whole row."""
    whole_rows = (0,) * (len(updates.shape) - len(indices.shape))
    strides = [updates.strides, (*indices.strides, *whole_rows)]
    strides.append(tuple(0 if i == axis else step for i, step in enumerate(total.strides)))
    if updates.size == 0:
        return [0, 0, 0, 0, 0, 0]
    axes = merged_axes(updates.shape, strides) or [(1, (1, 1, 1))]
    *outer, (length, steps) = axes
    rows = math.prod(size for size, _ in outer)
    numbers = [rows, len(outer), length, *steps]
    for tensor in range(len(strides)):
        numbers += [number for size, each in outer for number in (size, each[tensor])]
    return numbers


# `sort` and `top_k`: the positions in order first, then the elements at these positions.


_ORDERED = [dtype for dtype in dtypes.ALL if not dtype.is_complex]
_PARALLEL_FROM = 8_192
"""Elements from which it pays to share the work."""
_LEAST_ROOM = 256
"""Candidates that are put in order at once, at least, when few elements are wanted."""


@TABLE.register(sorting_ops.Sort, dtypes=_ORDERED)
def sort(builder: ScheduleBuilder, unit: Unit) -> None:
    """Arrange every operand in the order of the first."""
    op = unit.last.op
    assert isinstance(op, sorting_ops.Sort)
    results = [builder.define(value) for value in unit.last.results]
    if results[0].size == 0:
        return
    operands = [builder.view(value) for value in unit.last.operands]
    length = operands[0].shape[op.axis]
    positions = _order(builder, operands[0], op.axis, length, descending=op.descending)
    for operand, result in zip(operands, results, strict=True):
        _arrange(builder, operand, positions, result, op.axis)


@TABLE.register(sorting_ops.TopK, dtypes=_ORDERED)
def top_k(builder: ScheduleBuilder, unit: Unit) -> None:
    """Find the first positions of a stable order without sorting the rest."""
    op = unit.last.op
    assert isinstance(op, sorting_ops.TopK)
    values, indices = unit.last.results
    out = builder.define(values)
    if out.size == 0:
        builder.define(indices)
        return
    x = builder.view(unit.last.operands[0])
    positions = _order(builder, x, op.axis, op.k, descending=op.largest)
    _arrange(builder, x, positions, out, op.axis)
    builder.bind(indices, builder.converted(_along(positions, out, op.axis), op.indices_dtype))


def _order(builder: ScheduleBuilder, x: View, axis: int, k: int, *, descending: bool) -> View:
    """Return the positions of the first `k` elements of each line, as si64[lines, k]."""
    along = lines(x, axis)
    positions = builder.fresh(dtypes.si64, (along.count, k))
    room = least(along.length, greatest(2 * k, _LEAST_ROOM))
    numbers = [along.count, along.block, along.length, along.step, k, room, *along.geometry()]
    kernel = reduction_kernels.order(x.dtype, descending=descending)
    builder.call_tasks(
        compiled_task(kernel),
        along.tasks,
        (x, x),
        positions,
        numbers,
        builder.threads_from(_PARALLEL_FROM, along.work),
    )
    return positions


def _arrange(builder: ScheduleBuilder, x: View, positions: View, out: View, axis: int) -> None:
    along = lines(x, axis)
    numbers = [along.count, along.block, out.shape[axis], along.step, along.inner]
    builder.call_tasks(
        compiled_task(reduction_kernels.arrange(x.dtype.itemsize)),
        along.tasks,
        (x, positions),
        out,
        [*numbers, *along.geometry()],
        builder.threads_from(_PARALLEL_FROM, along.work),
    )


def _along(positions: View, out: View, axis: int) -> View:
    """Return positions by line as a tensor like `out`, with the lines laid along `axis`."""
    others = (*out.shape[:axis], *out.shape[axis + 1 :], out.shape[axis])
    last = len(others) - 1
    apart = View(positions.storage, positions.dtype, others, dense_strides(others))
    return apart.transposed((*range(axis), last, *range(axis, last)))


# Random ops: one kernel per element type, in tasks that each compute a part of the stream.


def rng(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call; the number of a task says where in the stream it begins."""
    op = cast("ops.Random", unit.last.op)
    seed = builder.contiguous(builder.view(unit.last.operands[0]))
    out = builder.define(unit.last.result)
    count = math.prod(op.shape)
    blocks = -(-count * max(op.dtype.bits, 32) // 128)
    kernel = kernels.random(op.dtype, normal=isinstance(op, ops.RngNormal))
    builder.call_tasks(
        compiled_task(kernel),
        -(-blocks // kernels.BLOCKS),
        (seed, seed),
        out,
        [count],
        builder.threads_from(kernels.BLOCKS + 1, blocks),
    )


for _class in (ops.RngUniform, ops.RngNormal):
    TABLE.register(_class, dtypes=_class.allowed)(rng)
