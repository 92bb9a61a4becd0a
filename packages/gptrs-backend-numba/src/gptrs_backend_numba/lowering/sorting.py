"""`sort` and `top_k`: the positions in order first, then the elements at these positions."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.ops import sorting as ops
from gptrs.ir.size_guards import greatest, least
from gptrs_backend_numba.axis_lines import lines
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels import sorting as kernels
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View, dense_strides

_ORDERED = [dtype for dtype in dtypes.ALL if not dtype.is_complex]
_PARALLEL_FROM = 8_192
"""Elements from which it pays to share the work."""
_LEAST_ROOM = 256
"""Candidates that are put in order at once, at least, when few elements are wanted."""


@TABLE.register(ops.Sort, dtypes=_ORDERED)
def sort(builder: ScheduleBuilder, unit: Unit) -> None:
    """Arrange every operand in the order of the first."""
    op = unit.last.op
    assert isinstance(op, ops.Sort)
    results = [builder.define(value) for value in unit.last.results]
    if results[0].size == 0:
        return
    operands = [builder.view(value) for value in unit.last.operands]
    length = operands[0].shape[op.axis]
    places = _order(builder, operands[0], op.axis, length, descending=op.descending)
    for operand, result in zip(operands, results, strict=True):
        _arrange(builder, operand, places, result, op.axis)


@TABLE.register(ops.TopK, dtypes=_ORDERED)
def top_k(builder: ScheduleBuilder, unit: Unit) -> None:
    """Find the first positions of a stable order without sorting the rest."""
    op = unit.last.op
    assert isinstance(op, ops.TopK)
    values, indices = unit.last.results
    out = builder.define(values)
    if out.size == 0:
        builder.define(indices)
        return
    x = builder.view(unit.last.operands[0])
    places = _order(builder, x, op.axis, op.k, descending=op.largest)
    _arrange(builder, x, places, out, op.axis)
    builder.bind(indices, builder.converted(_along(places, out, op.axis), op.indices_dtype))


def _order(builder: ScheduleBuilder, x: View, axis: int, k: int, *, descending: bool) -> View:
    """Return the positions of the first `k` elements of each line, as si64[lines, k]."""
    along = lines(x, axis)
    places = builder.fresh(dtypes.si64, (along.count, k))
    room = least(along.length, greatest(2 * k, _LEAST_ROOM))
    numbers = [along.count, along.block, along.length, along.step, k, room, *along.geometry()]
    kernel = kernels.order(x.dtype, descending=descending)
    builder.call_tasks(
        compiled_task(kernel),
        along.tasks,
        (x, x),
        places,
        numbers,
        builder.threads_from(_PARALLEL_FROM, along.work),
    )
    return places


def _arrange(builder: ScheduleBuilder, x: View, places: View, out: View, axis: int) -> None:
    along = lines(x, axis)
    numbers = [along.count, along.block, out.shape[axis], along.step, along.inner]
    builder.call_tasks(
        compiled_task(kernels.arrange(x.dtype.itemsize)),
        along.tasks,
        (x, places),
        out,
        [*numbers, *along.geometry()],
        builder.threads_from(_PARALLEL_FROM, along.work),
    )


def _along(places: View, out: View, axis: int) -> View:
    """Return positions by line as a tensor like `out`, with the lines laid along `axis`."""
    others = (*out.shape[:axis], *out.shape[axis + 1 :], out.shape[axis])
    last = len(others) - 1
    apart = View(places.storage, places.dtype, others, dense_strides(others))
    return apart.transposed((*range(axis), last, *range(axis, last)))
