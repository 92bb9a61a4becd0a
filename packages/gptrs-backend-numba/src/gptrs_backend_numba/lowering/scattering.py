"""`scatter_reduce` and `segment_reduce`: rows of updates walked in order, never in parallel.

Floats of 8 and 16 bits are combined in f32 and rounded at the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.ops import indexing as ops
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.registers import NUMBERS
from gptrs_backend_numba.kernels import scattering as kernels
from gptrs_backend_numba.lowering.indexing import out_of_range, positions
from gptrs_backend_numba.lowering.reduction import identity
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View, merged_axes

_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""The reduction that each kind of `scatter_reduce` but `replace` is a part of."""


@TABLE.register(ops.ScatterReduce, dtypes=MOVABLE)
def scatter_reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Combine into the operand if its memory is free after this, else into a copy of it."""
    op = unit.last.op
    assert isinstance(op, ops.ScatterReduce)
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


@TABLE.register(ops.SegmentReduce, dtypes=NUMBERS)
def segment_reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Scatter rows into a tensor of identities."""
    op = unit.last.op
    assert isinstance(op, ops.SegmentReduce)
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
    if isinstance(op, ops.SegmentReduce):
        axis, kind = 0, op.kind
    else:
        assert isinstance(op, ops.ScatterReduce)
        axis, kind = op.axis, _KINDS.get(op.kind)
    wide = positions(builder, indices)
    numbers = [indices.size, total.shape[axis], total.strides[axis]]
    if kind is None:
        kernel = kernels.replace(updates.dtype.itemsize)
    else:
        kernel = kernels.combine(kind, updates.dtype, total.dtype)
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
