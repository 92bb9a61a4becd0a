"""Layout ops are views where strides can say what they do, and copies where not."""

from __future__ import annotations

from gptrs.ir.ops import layout as ops
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Builder


@TABLE.register(ops.Reshape, dtypes=MOVABLE)
def reshape(builder: Builder, unit: Unit) -> None:
    """A view, of a contiguous copy if strides cannot express the new shape."""
    result = unit.last.result
    operand = builder.view(unit.last.operands[0])
    view = operand.reshaped(result.type.shape)
    if view is None:
        view = builder.contiguous(operand).reshaped(result.type.shape)
    assert view is not None, "a contiguous tensor takes any shape"
    builder.bind(result, view)


@TABLE.register(ops.Transpose, dtypes=MOVABLE)
def transpose(builder: Builder, unit: Unit) -> None:
    """A view."""
    op = unit.last.op
    assert isinstance(op, ops.Transpose)
    operand = builder.view(unit.last.operands[0])
    builder.bind(unit.last.result, operand.transposed(op.permutation))


@TABLE.register(ops.BroadcastTo, dtypes=MOVABLE)
def broadcast_to(builder: Builder, unit: Unit) -> None:
    """A view with strides of 0."""
    result = unit.last.result
    builder.bind(result, builder.view(unit.last.operands[0]).broadcast(result.type.shape))


@TABLE.register(ops.Slice, dtypes=MOVABLE)
def slice_(builder: Builder, unit: Unit) -> None:
    """A view."""
    op = unit.last.op
    assert isinstance(op, ops.Slice)
    operand = builder.view(unit.last.operands[0])
    steps = op.steps(len(operand.shape))
    builder.bind(unit.last.result, operand.sliced(op.starts, op.sizes, steps))


@TABLE.register(ops.Concat, dtypes=MOVABLE)
def concat(builder: Builder, unit: Unit) -> None:
    """Each operand copied to its part of the result."""
    op = unit.last.op
    assert isinstance(op, ops.Concat)
    target = builder.define(unit.last.result)
    ones = (1,) * len(target.shape)
    begin = 0
    for value in unit.last.operands:
        part = builder.view(value)
        starts = tuple(begin if axis == op.axis else 0 for axis in range(len(part.shape)))
        builder.copy(part, target.sliced(starts, part.shape, ones))
        begin += part.shape[op.axis]
