"""`constant` and `iota`: arrays made when the program is compiled, or a run of symbolic length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import creation as ops
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.kernels import indexing as kernels
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.size_classes import need_numbers
from gptrs_backend_numba.views import View


@TABLE.register(ops.Constant, dtypes=MOVABLE)
def constant(builder: ScheduleBuilder, unit: Unit) -> None:
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
def iota(builder: ScheduleBuilder, unit: Unit) -> None:
    """Bind one line of indices, repeated over the other axes by strides of 0."""
    op = unit.last.op
    assert isinstance(op, ops.Iota)
    # Without elements nothing is read, and another axis may be too long to count.
    count = 0 if 0 in op.shape else op.shape[op.axis]
    line = _counted(builder, op.dtype, count)
    strides = tuple(int(axis == op.axis) for axis in range(len(op.shape)))
    builder.bind(unit.last.result, replace(line, shape=op.shape, strides=strides))


def _counted(builder: ScheduleBuilder, dtype: DType, count: int) -> View:
    if not isinstance(count, SymbolicDim):
        return builder.constant(np.arange(count).astype(dtype.numpy))
    if count > ops.count_of_exact_indices(dtype):
        need_numbers([count])
    line = builder.fresh(dtypes.si64, (count,))
    builder.call(compiled(kernels.count_up), (), line, [count])
    return builder.converted(line, dtype)
