"""Layout ops: views where strides can express the result, else copies."""

from __future__ import annotations

import itertools

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import creation as creation_ops
from gptrs.ir.ops import layout as layout_ops
from gptrs.ir.size_guards import Shape, greatest, least
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.cost_model import need_numbers
from gptrs_backend_numba.kernels import indexing as kernels
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View, memory_order


@TABLE.register(layout_ops.Reshape, dtypes=MOVABLE)
def reshape(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind a view, of a contiguous copy if strides cannot express the new shape."""
    result = unit.last.result
    operand = builder.view(unit.last.operands[0])
    view = operand.reshaped(result.type.shape)
    if view is None:
        view = builder.contiguous(operand).reshaped(result.type.shape)
    assert view is not None, "a contiguous tensor takes any shape"
    builder.bind(result, view)


@TABLE.register(layout_ops.Transpose, dtypes=MOVABLE)
def transpose(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind a view."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Transpose)
    operand = builder.view(unit.last.operands[0])
    builder.bind(unit.last.result, operand.transposed(op.permutation))


@TABLE.register(layout_ops.BroadcastTo, dtypes=MOVABLE)
def broadcast_to(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind a view with strides of 0."""
    result = unit.last.result
    builder.bind(result, builder.view(unit.last.operands[0]).broadcast(result.type.shape))


@TABLE.register(layout_ops.Slice, dtypes=MOVABLE)
def slice_(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind a view."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Slice)
    operand = builder.view(unit.last.operands[0])
    steps = op.steps(len(operand.shape))
    builder.bind(unit.last.result, operand.sliced(op.starts, op.sizes, steps))


@TABLE.register(layout_ops.Concat, dtypes=MOVABLE)
def concat(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy each operand to its part of the result, which lies in memory as the first one does."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Concat)
    parts = [builder.view(value) for value in unit.last.operands]
    order = memory_order(parts[0].shape, parts[:1])
    target = builder.define(unit.last.result, order)
    ones = (1,) * len(target.shape)
    begin = 0
    for part in parts:
        starts = tuple(begin if axis == op.axis else 0 for axis in order)
        moved = part.transposed(order)
        builder.copy(moved, target.sliced(starts, moved.shape, ones))
        begin += part.shape[op.axis]


@TABLE.register(layout_ops.Pad, dtypes=MOVABLE)
def pad(builder: ScheduleBuilder, unit: Unit) -> None:
    """Fill the result with the value, then copy the kept elements to every `step`-th position."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Pad)
    x = builder.view(unit.last.operands[0])
    target = builder.define(unit.last.result)
    value = np.zeros((), x.dtype.numpy) if op.value is None else op.value.array
    builder.copy(replace(builder.constant(value), dtype=x.dtype).broadcast(target.shape), target)
    steps = tuple(between + 1 for between in op.between(len(x.shape)))
    kept = [
        _kept(dim, size, low, step)
        for dim, size, low, step in zip(x.shape, target.shape, op.low, steps, strict=True)
    ]
    sizes = tuple(last - first for first, last in kept)
    sources = tuple(first for first, _ in kept)
    starts = tuple(
        low + first * step for low, (first, _), step in zip(op.low, kept, steps, strict=True)
    )
    ones = (1,) * len(steps)
    builder.copy(x.sliced(sources, sizes, ones), target.sliced(starts, sizes, steps))


def _kept(dim: int, size: int, low: int, step: int) -> tuple[int, int]:
    """Return the first element i whose position `low + i * step` is in [0, size), and the end."""
    first = greatest(-(low // step), 0)
    return first, greatest(least(dim, -((low - size) // step)), first)


@TABLE.register(layout_ops.Tile, dtypes=MOVABLE)
def tile(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy once: every axis becomes two, the first with a stride of 0 in the operand."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Tile)
    x = builder.view(unit.last.operands[0])
    target = builder.define(unit.last.result)
    split = tuple(itertools.chain(*zip(op.repeats, x.shape, strict=True)))
    strides = tuple(itertools.chain(*((0, stride) for stride in x.strides)))
    apart = target.reshaped(split)
    assert apart is not None, "a contiguous tensor takes any shape"
    builder.copy(replace(x, shape=split, strides=strides), apart)


@TABLE.register(layout_ops.Reverse, dtypes=MOVABLE)
def reverse(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy the operand backwards."""
    op = unit.last.op
    assert isinstance(op, layout_ops.Reverse)
    x = builder.view(unit.last.operands[0])
    builder.copy(_backwards(x, op.axes), builder.define(unit.last.result))


def _backwards(x: View, axes: Shape) -> View:
    """Return `x` with negative strides from its last elements on: to be copied, never bound."""
    strides = tuple(-step if axis in axes else step for axis, step in enumerate(x.strides))
    last = sum((x.shape[axis] - 1) * x.strides[axis] for axis in axes)
    return replace(x, strides=strides, offset=x.offset + (last if x.size else 0))


# `constant` and `iota`: arrays made when the program is compiled, or a run of symbolic length.


@TABLE.register(creation_ops.Constant, dtypes=MOVABLE)
def constant(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind the literal itself, or its one element repeated by strides of 0."""
    op = unit.last.op
    assert isinstance(op, creation_ops.Constant)
    literal = op.value
    if literal.splat is None:
        view = builder.constant(literal.array)
    else:
        one = np.frombuffer(literal.splat, literal.type.dtype.numpy).reshape(())
        view = builder.constant(one).broadcast(literal.type.shape)
    builder.bind(unit.last.result, replace(view, dtype=literal.type.dtype))


@TABLE.register(creation_ops.Iota, dtypes=MOVABLE)
def iota(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind one line of indices, repeated over the other axes by strides of 0."""
    op = unit.last.op
    assert isinstance(op, creation_ops.Iota)
    # Without elements nothing is read, and another axis may be too long to count.
    count = 0 if 0 in op.shape else op.shape[op.axis]
    line = _counted(builder, op.dtype, count)
    strides = tuple(int(axis == op.axis) for axis in range(len(op.shape)))
    builder.bind(unit.last.result, replace(line, shape=op.shape, strides=strides))


def _counted(builder: ScheduleBuilder, dtype: DType, count: int) -> View:
    if not isinstance(count, SymbolicDim):
        return builder.constant(np.arange(count).astype(dtype.numpy))
    if count > creation_ops.count_of_exact_indices(dtype):
        need_numbers([count])
    line = builder.fresh(dtypes.si64, (count,))
    builder.call(compiled(kernels.count_up), (), line, [count])
    return builder.converted(line, dtype)
