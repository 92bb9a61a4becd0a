"""Indexing ops: indices are brought to int64, `dynamic_update_slice` works in place if it may."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.ops import indexing as ops
from gptrs.ir.ops.elementwise import ShiftLeft, ShiftRightArithmetic
from gptrs.ir.program import Instruction
from gptrs.ir.shapes import Shape
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.registers import register
from gptrs_backend_numba.kernels import indexing as kernels
from gptrs_backend_numba.kernels.elementwise import Operation, cast_operation
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Explain, Read, ScheduleBuilder, operand_types, with_dtype
from gptrs_backend_numba.views import View, merged_axes


@TABLE.register(ops.Take, dtypes=MOVABLE)
def take(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy rows one by one, after all indices have been checked."""
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    row = View(x.storage, x.dtype, x.shape[1:], x.strides[1:])
    *axes, (length, (stride,)) = _axes(row.shape, row.strides)
    geometry = [indices.size, x.shape[0], x.strides[0]]
    geometry += [math.prod(size for size, _ in axes), len(axes), length, stride, *_flat(axes, 0)]
    kernel = compiled(kernels.take(x.dtype.itemsize))
    reads = (x, positions(builder, indices))
    explain = out_of_range(unit.last, indices, 0, x.shape[0])
    builder.call(kernel, reads, out, geometry, explain)


@TABLE.register(ops.Gather, dtypes=MOVABLE)
def gather(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy elements one by one, after all indices have been checked."""
    op = unit.last.op
    assert isinstance(op, ops.Gather)
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    geometry = [indices.size, x.shape[op.axis], x.strides[op.axis], len(x.shape)]
    for axis, (size, stride) in enumerate(zip(indices.shape, x.strides, strict=True)):
        geometry += [size, 0 if axis == op.axis else stride]
    kernel = compiled(kernels.gather(x.dtype.itemsize))
    reads = (x, positions(builder, indices))
    explain = out_of_range(unit.last, indices, op.axis, x.shape[op.axis])
    builder.call(kernel, reads, out, geometry, explain)


@TABLE.register(ops.DynamicSlice, dtypes=MOVABLE)
def dynamic_slice(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy a block out of the operand; bind the operand itself if it is the whole block."""
    x, starts = (builder.view(value) for value in unit.last.operands)
    result = unit.last.result
    if x.shape == result.type.shape:
        builder.bind(result, x)
        return
    _move(builder, x, builder.define(result), starts, into=False)


@TABLE.register(ops.DynamicUpdateSlice, dtypes=MOVABLE)
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
    kernel = compiled(kernels.move(source.dtype.itemsize, into=into))
    builder.call(kernel, (source, positions(builder, starts)), target, geometry)


def positions(builder: ScheduleBuilder, indices: View) -> View:
    """Return indices of any integer type as contiguous si64; those beyond it stay out of range."""
    if indices.dtype.bits >= 8:
        return builder.converted(indices, dtypes.si64)
    # Only the low half of the byte counts: moved up and down again it takes its sign along.
    byte = dtypes.si8 if indices.dtype.kind == "signed" else dtypes.ui8
    half = (f"{register(byte)}(4)", byte)
    up = Operation(ShiftLeft(), (("x0", byte), half), ("y0", byte))
    down = Operation(ShiftRightArithmetic(), (("y0", byte), half), ("y1", byte))
    target = builder.fresh(dtypes.si64, indices.shape)
    cast = cast_operation("y1", byte, "y2", dtypes.si64)
    builder.elementwise([with_dtype(indices, byte)], target, [up, down, cast])
    return target


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
