"""Reductions: the axes are sorted into kept and reduced ones for a kernel per element type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import reduction as ops
from gptrs.ir.size_guards import greatest, least
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.registers import NUMBERS, constant
from gptrs_backend_numba.kernels import reduction as kernels
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.size_classes import is_equal, is_one
from gptrs_backend_numba.views import View, merged_axes

Axes = list[tuple[int, tuple[int, ...]]]
_PARALLEL_FROM = 32_768
"""Elements from which sharing pays: waking a worker takes microseconds."""
_ELEMENTS_A_TASK = 16_384
"""Elements that a task reduces: fewer would not be worth handing out."""
_FEWEST_COLUMNS, _MOST_COLUMNS, _COLUMNS_A_LINE = 64, 2048, 16
"""Running values side by side: loops over fewer would be short; so many stay in the L1 cache."""
_IN_PLACE = (dtypes.f32, dtypes.f64, dtypes.si32, dtypes.si64)
"""Types whose running values can lie in the memory of the result."""


@TABLE.register(ops.Reduce, dtypes=(dtypes.i1, *NUMBERS))
def reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call of tasks, none for a result without elements."""
    op = unit.last.op
    assert isinstance(op, ops.Reduce)
    x = builder.view(unit.last.operands[0])
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    kept, reduced = _split(x, op.axes)
    if op.kind in ("sum", "prod"):
        _require_one_order(reduced)
    *outer, (length, (stride,)) = reduced or [(1, (1,))]
    rows = math.prod(size for size, _ in outer)
    accumulator = op.accumulator(unit.last.operands[0].type)
    start = identity(op.kind, accumulator)
    if op.kind == "sum" and accumulator.is_float and rows * length > 0:
        start = -0.0  # so that a sum of nothing but -0.0 keeps its sign
    first = constant(start, accumulator)
    # Only sums of floats depend on their order, and PTIR leaves that open.
    fastmath = ("reassoc",) if op.kind in ("sum", "prod") else ()
    if out.dtype is accumulator and accumulator in _IN_PLACE and _side_by_side(kept):
        *kept, (width, _) = kept
        count = math.prod(size for size, _ in kept)
        chunk, chunks = _columns(width, rows * length)
        block, tasks = _blocks(count * chunks, chunk * rows * length)
        geometry = [count * chunks, block, chunks, chunk, len(kept), width]
        kernel = kernels.column_reduction(op.kind, first, x.dtype, out.dtype)
    else:
        block, tasks = _blocks(out.size, rows * length)
        geometry = [out.size, block, len(kept)]
        kernel = kernels.reduction(op.kind, first, x.dtype, accumulator, out.dtype)
    geometry += [rows, len(outer), length, stride, *_flat(kept), *_flat(outer)]
    task = compiled(kernel, fastmath=fastmath).address
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    builder.call_tasks(task, tasks, (x, x), out, geometry, threads)


@TABLE.register(ops.Argmax, ops.Argmin, dtypes=[d for d in dtypes.ALL if not d.is_complex])
def extreme(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call of tasks, none for a result without elements."""
    op = unit.last.op
    assert isinstance(op, ops.ArgExtreme)
    x = builder.view(unit.last.operands[0])
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    kept, _ = _split(x, (op.axis,))
    block, tasks = _blocks(out.size, x.shape[op.axis])
    geometry = [out.size, block, len(kept), x.shape[op.axis], x.strides[op.axis], *_flat(kept)]
    task = compiled_task(kernels.extreme(isinstance(op, ops.Argmax), x.dtype, out.dtype))
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    builder.call_tasks(task, tasks, (x, x), out, geometry, threads)


def _blocks(results: int, elements: int) -> tuple[int, int]:
    """Return how many results, of so many `elements` each, a task has, and the number of tasks."""
    block = greatest(1, _ELEMENTS_A_TASK // greatest(1, elements))
    return block, -(-results // block)


def _columns(width: int, rows: int) -> tuple[int, int]:
    """Return the results of a chunk of a row, whole cache lines, and the number of chunks."""
    most = greatest(_FEWEST_COLUMNS, least(_MOST_COLUMNS, _ELEMENTS_A_TASK // greatest(1, rows)))
    each = -(-width // greatest(1, -(-width // most)))
    chunk = greatest(1, -(-each // _COLUMNS_A_LINE)) * _COLUMNS_A_LINE
    return chunk, -(-width // chunk)


def _side_by_side(kept: Axes) -> bool:
    """Return whether neighbouring results are reduced from neighbouring elements."""
    return bool(kept) and kept[-1][1] == (1,) and not is_one(kept[-1][0])


def _split(x: View, axes: Sequence[int]) -> tuple[Axes, Axes]:
    """Return merged kept axes, and merged reduced ones (one of size 0 if nothing is reduced)."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    if any(x.shape[axis] == 0 for axis in axes):
        return [], [(0, (1,))]
    return _merged(x, kept), _merged(x, axes)


def _merged(x: View, axes: Sequence[int]) -> Axes:
    shape = tuple(x.shape[axis] for axis in axes)
    return merged_axes(shape, [[x.strides[axis] for axis in axes]])


def _require_one_order(axes: Axes) -> None:
    """Decide about symbolic axes that would merge for some sizes: sums of floats would differ."""
    if len(axes) > 1:
        for (_, (step,)), (size, (inner,)) in pairwise(axes):
            is_equal(step, inner * size)
            is_one(size)
        is_one(axes[0][0])


def _flat(axes: Axes) -> list[int]:
    return [number for size, (stride,) in axes for number in (size, stride)]


def identity(kind: str, dtype: DType) -> float | int:
    """Return the result of a reduction of `kind` over no elements."""
    if kind in ("sum", "or"):
        return 0
    if kind == "prod":
        return 1
    if kind == "and":
        return 1 if dtype.is_bool else _all_ones(dtype)
    if dtype.is_float:
        greatest = 448.0 if dtype is dtypes.f8e4m3 else math.inf
        return -greatest if kind == "max" else greatest
    return _least(dtype) if kind == "max" else _all_ones(dtype) ^ _least(dtype)


def _least(dtype: DType) -> int:
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0


def _all_ones(dtype: DType) -> int:
    return -1 if dtype.kind == "signed" else 2**dtype.bits - 1
