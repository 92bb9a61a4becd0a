"""Reductions: the axes are sorted into kept and reduced ones for a kernel per element type."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import normalization as normalization_ops
from gptrs.ir.ops import reduction as reduction_ops
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import greatest, least
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.codegen.machine import FLOATS, NUMBERS, constant
from gptrs_backend_numba.cost_model import is_equal, is_one
from gptrs_backend_numba.kernels import normalization as groups_kernels
from gptrs_backend_numba.kernels import normalization as normalization_kernels
from gptrs_backend_numba.kernels import reduction as reduction_kernels
from gptrs_backend_numba.lowering.table import TABLE, custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View, lines, merged_axes

Axes = list[tuple[int, tuple[int, ...]]]
_PARALLEL_FROM = 32_768
"""Elements from which sharing pays: waking a worker takes microseconds."""
_ELEMENTS_A_TASK = 16_384
"""Elements that a task reduces: fewer would not be worth handing out."""
_FEWEST_COLUMNS, _MOST_COLUMNS, _COLUMNS_A_LINE = 64, 2048, 16
"""Running values side by side: loops over fewer would be short; so many stay in the L1 cache."""
_IN_PLACE = (dtypes.f32, dtypes.f64, dtypes.si32, dtypes.si64)
"""Types whose running values can lie in the memory of the result."""


@TABLE.register(reduction_ops.Reduce, dtypes=(dtypes.i1, *NUMBERS))
def reduce(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call of tasks, none for a result without elements."""
    op = unit.last.op
    assert isinstance(op, reduction_ops.Reduce)
    x, out = _opened(builder, unit)
    if out.size == 0:
        return
    kept, reduced = _split(x, op.axes)
    # Maxima and truth values are the same in any order.
    if op.kind in ("sum", "prod"):
        _require_one_order(reduced)
    *outer, (length, (stride,)) = reduced or [(1, (1,))]
    rows = math.prod(size for size, _ in outer)
    accumulator = op.accumulator(unit.last.operands[0].type)
    start, nothing = _beginning(op.kind, accumulator)
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    first = start if start is nothing or rows * length > 0 else nothing
    # Only sums of floats depend on their order, and PTIR leaves that open.
    fastmath = ("reassoc",) if op.kind in ("sum", "prod") else ()
    # Running values in memory: a loop over neighbours is one of vectors, whatever the axis.
    if out.dtype is accumulator and accumulator in _IN_PLACE and _side_by_side(kept):
        *kept, (width, _) = kept
        count = math.prod(size for size, _ in kept)
        chunk, chunks = _columns(width, rows * length, builder.context.threads)
        block, tasks = _blocks(count * chunks, chunk * rows * length)
        geometry = [count * chunks, block, chunks, chunk, len(kept), width]
        kernel = reduction_kernels.column_reduction(op.kind, first, x.dtype, out.dtype)
        fastmath = ()  # each column is added row by row, however many rows at a time
    else:
        block, tasks = _blocks(out.size, rows * length)
        geometry = [out.size, block, len(kept)]
        kernel = reduction_kernels.reduction(op.kind, first, x.dtype, accumulator, out.dtype)
    geometry += [rows, len(outer), length, stride, *_flat(kept), *_flat(outer)]
    task = compiled(kernel, fastmath=fastmath).address
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    builder.call_tasks(task, tasks, (x, x), out, geometry, threads)


# `gptrs.numba.sum_of_squares.v1`: of all elements of x, f32, which are not written and read again.


SUM_OF_SQUARES = "gptrs.numba.sum_of_squares.v1"


def _squares(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    (result,) = op.results
    return not op.attrs and [x.dtype for x in (*operands, result)] == [dtypes.f32] * 2


@custom_call(SUM_OF_SQUARES, when=_squares)
def sum_of_squares(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one task, which adds in the order of `reduce`."""
    x, out = _opened(builder, unit)
    _, reduced = _split(x, range(len(x.shape)))
    *outer, (length, (stride,)) = reduced or [(1, (1,))]
    rows = math.prod(size for size, _ in outer)
    start, _ = _beginning("sum", dtypes.f32)
    types = (dtypes.f32, dtypes.f32, dtypes.f32)
    kernel = reduction_kernels.reduction("squares", start, *types)
    task = compiled(kernel, fastmath=("reassoc",)).address
    geometry = [1, 1, 0, rows, len(outer), length, stride, *_flat(outer)]
    builder.call_tasks(task, 1, (x, x), out, geometry, 1)


@TABLE.register(
    reduction_ops.Argmax, reduction_ops.Argmin, dtypes=[d for d in dtypes.ALL if not d.is_complex]
)
def extreme(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one call of tasks, none for a result without elements."""
    op = unit.last.op
    assert isinstance(op, reduction_ops.ArgExtreme)
    x, out = _opened(builder, unit)
    if out.size == 0:
        return
    kept, _ = _split(x, (op.axis,))
    block, tasks = _blocks(out.size, x.shape[op.axis])
    geometry = [out.size, block, len(kept), x.shape[op.axis], x.strides[op.axis], *_flat(kept)]
    task = compiled_task(
        reduction_kernels.extreme(isinstance(op, reduction_ops.Argmax), x.dtype, out.dtype)
    )
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    builder.call_tasks(task, tasks, (x, x), out, geometry, threads)


def _opened(builder: ScheduleBuilder, unit: Unit) -> tuple[View, View]:
    """Return the view of the first operand, and memory for the result."""
    return builder.view(unit.last.operands[0]), builder.define(unit.last.result)


def _blocks(results: int, elements: int) -> tuple[int, int]:
    """Return the results of a task, each of `elements` elements, and the number of tasks."""
    block = greatest(1, _ELEMENTS_A_TASK // greatest(1, elements))
    return block, -(-results // block)


def _columns(width: int, rows: int, threads: int) -> tuple[int, int]:
    """Return the results of a chunk of a row, whole cache lines, and the number of chunks.

    There are no more chunks than threads need: long pieces of rows are read faster.
    """
    wanted = greatest(_ELEMENTS_A_TASK // greatest(1, rows), -(-width // (2 * threads)))
    most = greatest(_FEWEST_COLUMNS, least(_MOST_COLUMNS, wanted))
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


def _beginning(kind: str, accumulator: DType) -> tuple[np.generic, np.generic]:
    """Return what totals begin with, and the result of a reduction over no elements."""
    nothing = constant(identity(kind, accumulator), accumulator)
    if kind == "sum" and accumulator.is_float:
        # -0.0 + x is x for every x: a sum of nothing but -0.0 keeps its sign, which 0.0 would take.
        return constant(-0.0, accumulator), nothing
    return nothing, nothing


def _least(dtype: DType) -> int:
    return -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0


def _all_ones(dtype: DType) -> int:
    return -1 if dtype.kind == "signed" else 2**dtype.bits - 1


# `cumulative`: one pass over each line, lines in parallel.


@TABLE.register(reduction_ops.Cumulative, dtypes=NUMBERS)
def cumulative(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call for running totals from the first element of each line, or from the last."""
    op = unit.last.op
    assert isinstance(op, reduction_ops.Cumulative)
    x, out = _opened(builder, unit)
    if out.size == 0:
        return
    along = lines(x, op.axis)
    steps = (along.step, along.inner)
    direction, first = (-1, along.length - 1) if op.reverse else (1, 0)
    numbers = [along.count, along.block, along.length]
    numbers += [number for step in steps for number in (first * step, direction * step)]
    accumulator = op.accumulator(unit.last.operands[0].type)
    if accumulator is dtypes.f32 and op.kind in ("sum", "prod"):
        accumulator = dtypes.f64  # as in torch: a total in f32 loses all that is small beside it
    start, nothing = _beginning(op.kind, accumulator)
    kernel = reduction_kernels.cumulative(
        op.kind,
        start,
        nothing,
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


# `layer_norm`: line by line, lines in parallel.


@TABLE.register(normalization_ops.LayerNorm, dtypes=FLOATS)
def layer_norm(builder: ScheduleBuilder, unit: Unit) -> None:
    """Put the scale and the bias side by side, then add one pass over the lines."""
    op = unit.last.op
    assert isinstance(op, normalization_ops.LayerNorm)
    x, scale, bias = (builder.view(value) for value in unit.last.operands)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    along = lines(x, op.axis)
    builder.call_tasks(
        compiled_task(normalization_kernels.layer_norm(x.dtype, constant(op.epsilon, x.dtype))),
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


# `gptrs.numba.<kind>.<dtype>.v1` of norms, and of softmax over the last axis.
#
# `layer_norm`, `rms_norm`, `softmax` and `safe_softmax` take x [.., N]; a weight [N] if the
# attribute `weight`; a bias [N] if `bias`, for `layer_norm` alone. The attribute `epsilon` is that
# of the functional; both kinds of softmax have no attributes. The result [.., N] is computed in f32
# and rounded once.
#
# `gptrs.numba.standardize.f32.v1` is the middle of norms over other `axes`: `x` less its mean, over
# the root of its variance and `epsilon`.


_COLUMNS_A_TASK = 128
"""Channels that a task normalizes: a block of their rows stays in the L1 cache."""
_STANDARDIZE = "gptrs.numba.standardize.f32.v1"
_FLAGS = {
    "layer_norm": ("weight", "bias"), "rms_norm": ("weight",), "softmax": (), "safe_softmax": (),
}  # fmt: skip
KINDS = tuple(_FLAGS)
"""The functionals whose calls there are kernels for."""


def rows_target(kind: str, dtype: DType) -> str:
    """Return the target of one of `KINDS` for an operand of this type."""
    return f"gptrs.numba.{kind}.{dtype}.v1"


def _kind(op: CustomCall) -> str:
    return op.target.split(".")[2]


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    attrs, flags = op.attrs, _FLAGS[_kind(op)]
    wanted = {*flags, "epsilon"} if flags else set[str]()
    if set(attrs) != wanted or not all(isinstance(attrs[flag], bool) for flag in flags):
        return False
    if flags and not isinstance(attrs["epsilon"], float):
        return False
    if len(operands) != 1 + sum(bool(attrs[flag]) for flag in flags) or operands[0].rank == 0:
        return False
    x = operands[0]
    vector = TensorType(x.dtype, x.shape[-1:])
    return (
        op.target == rows_target(_kind(op), x.dtype)
        and op.results == (x,)
        and all(operand == vector for operand in operands[1:])
        and 0 not in x.shape
    )


def row_kernel(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one pass over blocks of rows."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, *vectors = (builder.view(operand) for operand in unit.last.operands)
    vectors = [builder.contiguous(vector) for vector in vectors]
    out = builder.define(unit.last.result)
    weight, bias = (vectors.pop(0) if _has(op, flag) else x for flag in ("weight", "bias"))
    epsilon = op.attrs["epsilon"] if _FLAGS[_kind(op)] else 0.0
    assert isinstance(epsilon, float)
    _add_rows(builder, _task_kernel(op, x), (x, weight, bias), out, epsilon)


def _add_rows(
    builder: ScheduleBuilder,
    kernel: SpecializedKernel,
    operands: tuple[View, View, View],
    out: View,
    epsilon: float,
) -> None:
    x, weight, bias = operands
    along = lines(x, len(x.shape) - 1)
    sizes = [along.count, along.block, along.length, along.step]
    geometry = [*sizes, _bits(epsilon), *along.geometry()]
    threads = builder.threads_from(_PARALLEL_FROM, along.work)
    job = (compiled_task(kernel), along.tasks, threads)
    builder.add_job_of_many(job, (x, x, weight, bias), out, geometry)


def _bits(epsilon: float) -> int:
    return int(np.float64(epsilon).view(np.int64))


def _has(op: CustomCall, flag: str) -> bool:
    return flag in op.attrs and bool(op.attrs[flag])


def _task_kernel(op: CustomCall, x: View) -> SpecializedKernel:
    kind = _kind(op)
    if not _FLAGS[kind]:
        return normalization_kernels.softmax(x.dtype, safe=kind == "safe_softmax")
    return normalization_kernels.norm(
        x.dtype,
        centered=kind == "layer_norm",
        weight=_has(op, "weight"),
        bias=_has(op, "bias"),
    )


class Groups(Struct, frozen=True):
    """A tensor as `images` of `positions` with `groups` of `each` channels.

    A norm takes together all positions of an image, and the channels of a group.
    """

    images: int
    positions: int
    groups: int
    each: int


def groups_of(shape: Sequence[int], axes: Sequence[int]) -> Groups | None:
    """Return how `axes` divide a shape; None unless they are neighbours but for the last ones."""
    kinds = "".join("r" if axis in axes else "k" for axis in range(len(shape)))
    found = re.fullmatch("(k*)(r+)(k*)(r*)", kinds)
    if found is None:
        return None
    sizes = (math.prod(shape[slice(*found.span(part))]) for part in range(1, 5))
    return Groups(*sizes)


def standardize_target(axes: Sequence[int], x: TensorType, epsilon: float) -> CustomCall | None:
    """Return the call that normalizes over `axes`; None without a kernel for it."""
    if x.dtype is not dtypes.f32 or 0 in x.shape or groups_of(x.shape, axes) is None:
        return None
    attrs = Dictionary.of({"axes": tuple(axes)}, epsilon=epsilon)
    return CustomCall(_STANDARDIZE, (x,), attrs)


def _standardizes(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if len(operands) != 1 or set(op.attrs) != {"axes", "epsilon"}:
        return False
    axes, epsilon = op.attrs["axes"], op.attrs["epsilon"]
    return (
        isinstance(axes, tuple)
        and isinstance(epsilon, float)
        and op == standardize_target(axes, operands[0], epsilon)
    )


@custom_call(_STANDARDIZE, when=_standardizes)
def standardize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a pass over groups of channels, or over rows where a sample is one group."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x = builder.contiguous(builder.view(unit.last.operands[0]))
    out = builder.define(unit.last.result)
    axes, epsilon = op.attrs["axes"], op.attrs["epsilon"]
    assert isinstance(axes, tuple)
    assert isinstance(epsilon, float)
    found = groups_of(x.shape, axes)
    assert found is not None
    if found.groups == 1:
        rows = x.reshaped((found.images, found.positions * found.each))
        assert rows is not None, "contiguous"
        kernel = normalization_kernels.norm(x.dtype, centered=True, weight=False, bias=False)
        _add_rows(builder, kernel, (rows, rows, rows), out, epsilon)
        return
    channels = found.groups * found.each
    most = max(1, _COLUMNS_A_TASK // found.each) * found.each
    tasks = -(-channels // most)
    geometry = [found.positions, channels, found.each, most, tasks, _bits(epsilon)]
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    task = compiled_task(groups_kernels.standardize())
    builder.call_tasks(task, found.images * tasks, (x, x), out, geometry, threads)


for _kind_name in KINDS:
    for _dtype in normalization_kernels.FLOATS:
        custom_call(rows_target(_kind_name, _dtype), when=_when)(row_kernel)
