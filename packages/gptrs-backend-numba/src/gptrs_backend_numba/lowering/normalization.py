"""`layer_norm`: line by line, lines in parallel."""

from __future__ import annotations

from gptrs.ir.ops import normalization as ops
from gptrs_backend_numba.axis_lines import lines
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.registers import FLOATS, constant
from gptrs_backend_numba.kernels import normalization as kernels
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

_PARALLEL_FROM = 32_768
"""Elements from which it pays to share the work: waking a worker takes microseconds."""


@TABLE.register(ops.LayerNorm, dtypes=FLOATS)
def layer_norm(builder: ScheduleBuilder, unit: Unit) -> None:
    """Put the scale and the bias side by side, then add one pass over the lines."""
    op = unit.last.op
    assert isinstance(op, ops.LayerNorm)
    x, scale, bias = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    along = lines(x, op.axis)
    builder.call_tasks(
        compiled_task(kernels.layer_norm(x.dtype, constant(op.epsilon, x.dtype))),
        along.tasks,
        (x, _joined(builder, scale, bias)),
        out,
        [along.count, along.block, along.length, along.step, along.inner, *along.geometry()],
        builder.threads_from(_PARALLEL_FROM, along.work),
    )


def _joined(builder: ScheduleBuilder, *vectors: View) -> View:
    """Return the vectors one after another in memory: tasks take two operands only."""
    size = vectors[0].size
    joined = builder.fresh(vectors[0].dtype, (len(vectors) * size,))
    for number, vector in enumerate(vectors):
        builder.copy(vector, joined.sliced((number * size,), (size,), (1,)))
    return joined
