"""`constant` and `iota`: arrays made when the program is compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gptrs.ir.ops import creation as ops
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Builder


@TABLE.register(ops.Constant, dtypes=MOVABLE)
def constant(builder: Builder, unit: Unit) -> None:
    """Bind the literal itself, or its one element repeated by strides of 0."""
    op = unit.last.op
    assert isinstance(op, ops.Constant)
    literal = op.value
    if literal.splat is None:
        view = builder.constant(literal.array)
    else:
        one = np.frombuffer(literal.splat, literal.type.dtype.numpy).reshape(())
        view = builder.constant(one).broadcast(literal.type.shape)
    builder.bind(unit.last.result, replace(view, dtype=literal.type.dtype))


@TABLE.register(ops.Iota, dtypes=MOVABLE)
def iota(builder: Builder, unit: Unit) -> None:
    """Bind one line of indices, repeated over the other axes by strides of 0."""
    op = unit.last.op
    assert isinstance(op, ops.Iota)
    # Without elements nothing is read, and another axis may be too long to count.
    count = 0 if 0 in op.shape else op.shape[op.axis]
    line = builder.constant(np.arange(count).astype(op.dtype.numpy))
    strides = tuple(int(axis == op.axis) for axis in range(len(op.shape)))
    builder.bind(unit.last.result, replace(line, shape=op.shape, strides=strides))
