"""Indexing ops: indices are brought to int64, `dynamic_update_slice` works in place if it may."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import indexing as ops
from gptrs.ir.program import Instruction
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kernels import indexing as kernels
from gptrs_backend_numba.kernels.compiled import compiled
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE, is_index
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Builder, Explain, Read
from gptrs_backend_numba.views import View, merged_axes


def _when(op: Op, operands: Sequence[TensorType]) -> bool:
    return is_index(operands[-1].dtype)


@TABLE.register(ops.Take, dtypes=MOVABLE, when=_when)
def take(builder: Builder, unit: Unit) -> None:
    """Rows copied one by one, after all indices have been checked."""
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    row = View(x.storage, x.dtype, x.shape[1:], x.strides[1:])
    *axes, (length, (stride,)) = _axes(row.shape, row.strides)
    geometry = [indices.size, x.shape[0], x.strides[0]]
    geometry += [math.prod(size for size, _ in axes), len(axes), length, stride, *_flat(axes, 0)]
    kernel = compiled(kernels.take_source(x.dtype.itemsize))
    reads = (x, builder.converted(indices, dtypes.si64))
    builder.call(kernel, reads, out, geometry, _explain(unit.last, indices, 0))


@TABLE.register(ops.Gather, dtypes=MOVABLE, when=_when)
def gather(builder: Builder, unit: Unit) -> None:
    """Elements copied one by one, after all indices have been checked."""
    op = unit.last.op
    assert isinstance(op, ops.Gather)
    x, indices = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    geometry = [indices.size, x.shape[op.axis], x.strides[op.axis], len(x.shape)]
    for axis, (size, stride) in enumerate(zip(indices.shape, x.strides, strict=True)):
        geometry += [size, 0 if axis == op.axis else stride]
    kernel = compiled(kernels.gather_source(x.dtype.itemsize))
    reads = (x, builder.converted(indices, dtypes.si64))
    builder.call(kernel, reads, out, geometry, _explain(unit.last, indices, op.axis))


@TABLE.register(ops.DynamicSlice, dtypes=MOVABLE, when=_when)
def dynamic_slice(builder: Builder, unit: Unit) -> None:
    """A block copied out of the operand; of one without axes, or as large, the operand itself."""
    x, starts = (builder.view(value) for value in unit.last.operands)
    result = unit.last.result
    if x.shape == result.type.shape:
        builder.bind(result, x)
        return
    _move(builder, x, builder.define(result), starts, into=False)


@TABLE.register(ops.DynamicUpdateSlice, dtypes=MOVABLE, when=_when)
def dynamic_update_slice(builder: Builder, unit: Unit) -> None:
    """A block copied into the operand if its memory is free after this, else into a copy of it."""
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


def _move(builder: Builder, source: View, target: View, starts: View, *, into: bool) -> None:
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
    kernel = compiled(kernels.move_source(source.dtype.itemsize, into=into))
    positions = builder.converted(starts, dtypes.si64)
    builder.call(kernel, (source, positions), target, geometry)


def _axes(shape: Shape, strides: Shape) -> list[tuple[int, tuple[int, ...]]]:
    if 0 in shape:
        return [(0, (1,))]
    return merged_axes(shape, [strides]) or [(1, (1,))]


def _flat(axes: Sequence[tuple[int, tuple[int, ...]]], tensor: int) -> list[int]:
    return [number for size, strides in axes for number in (size, strides[tensor])]


def _explain(instruction: Instruction, indices: View, axis: int) -> Explain:
    x, positions = (value.type for value in instruction.operands)

    def explain(read: Read) -> str:
        found = read(indices).reshape(-1)
        wrong = found[(found < 0) | (found >= np.uint64(x.shape[axis]))]
        return (
            f"`{instruction.op.name}` of {x}, {positions}: index {int(wrong[0])} is out of range "
            f"for axis {axis} of size {x.shape[axis]}"
        )

    return explain
