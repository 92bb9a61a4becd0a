"""`cumulative`: one pass over each line, lines in parallel."""

from __future__ import annotations

from gptrs.ir.ops import reduction as ops
from gptrs_backend_numba.axis_lines import lines
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.registers import NUMBERS, constant
from gptrs_backend_numba.kernels import cumulative as kernels
from gptrs_backend_numba.lowering.reduction import identity
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

_PARALLEL_FROM = 32_768
"""Elements from which it pays to share the work: waking a worker takes microseconds."""


@TABLE.register(ops.Cumulative, dtypes=NUMBERS)
def cumulative(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call for running totals from the first element of each line, or from the last."""
    op = unit.last.op
    assert isinstance(op, ops.Cumulative)
    x = builder.view(unit.last.operands[0])
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    along = lines(x, op.axis)
    steps = (along.step, along.inner)
    direction, first = (-1, along.length - 1) if op.reverse else (1, 0)
    numbers = [along.count, along.block, along.length]
    numbers += [number for step in steps for number in (first * step, direction * step)]
    accumulator = op.accumulator(unit.last.operands[0].type)
    nothing = identity(op.kind, accumulator)
    # A sum of nothing but -0.0 keeps its sign.
    start = -0.0 if op.kind == "sum" and accumulator.is_float else nothing
    kernel = kernels.cumulative(
        op.kind,
        constant(start, accumulator),
        constant(nothing, accumulator),
        x.dtype,
        accumulator,
        out.dtype,
        exclusive=op.exclusive,
    )
    builder.call_tasks(
        compiled_task(kernel),
        along.tasks,
        (x, x),
        out,
        [*numbers, along.inner, *along.geometry()],
        builder.threads_from(_PARALLEL_FROM, along.work),
    )
