"""`reduce_window` and `extract_patches`: chunks of rows in parallel over a contiguous operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.dtypes import DType
from gptrs.ir.ops import window as ops
from gptrs.ir.size_guards import Shape, greatest, least
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.machine import NUMBERS, constant
from gptrs_backend_numba.cost_model import need_numbers
from gptrs_backend_numba.kernels import window as kernels
from gptrs_backend_numba.lowering.reduction import identity
from gptrs_backend_numba.lowering.table import MOVABLE, TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View, dense_strides, memory_order

_PARALLEL_FROM = 32_768
"""Elements read or written from which sharing pays: waking a worker takes microseconds."""
_ELEMENTS_A_CHUNK = 4_096
"""Running values in a chunk: the L1 cache holds them and the elements added to them."""


class _Plan(Struct, frozen=True):
    """The division of rows into chunks: a row is the axis `row` with `inner` elements after it."""

    axes: Sequence[ops.AxisWindow]
    dims: Shape
    row: int
    inner: int
    produced: int
    """Elements of the result for each position of the row."""

    @property
    def items(self) -> int:
        """Return the number of chunks of all rows."""
        rows = math.prod(self._positions(axis) for axis in range(self.row))
        return rows * self._chunks

    @property
    def block(self) -> int:
        """Return the number of chunks per task."""
        return greatest(1, _ELEMENTS_A_CHUNK // (self._chunk * self.produced))

    @property
    def tasks(self) -> int:
        """Return the number of tasks; their borders depend on sizes alone."""
        return -(-self.items // self.block)

    def geometry(self) -> list[int]:
        """Return the geometry that the kernels read, as described in their module."""
        numbers = [self.items, self.block, self._chunks, self._chunk, self.inner, self.row]
        numbers += self._axis(self.row)
        steps = dense_strides((*self.dims[: self.row + 1], self.inner))
        for axis in range(self.row):
            numbers += [*self._axis(axis), steps[axis]]
        return numbers

    @property
    def _chunk(self) -> int:
        return greatest(1, least(self._positions(self.row), _ELEMENTS_A_CHUNK // self.produced))

    @property
    def _chunks(self) -> int:
        return -(-self._positions(self.row) // self._chunk)

    def _positions(self, axis: int) -> int:
        return self.axes[axis].positions(self.dims[axis])

    def _axis(self, axis: int) -> list[int]:
        window, dim = self.axes[axis], self.dims[axis]
        return [
            window.positions(dim), window.size, window.stride, window.low, window.dilation, dim
        ]  # fmt: skip


@TABLE.register(ops.ReduceWindow, dtypes=NUMBERS)
def reduce_window(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call that combines a row of running values with each position in the window."""
    op = unit.last.op
    assert isinstance(op, ops.ReduceWindow)
    x = builder.view(unit.last.operands[0])
    order = memory_order(x.shape, [x])
    x, out = builder.contiguous(x.transposed(order)), builder.define(unit.last.result, order)
    if out.size == 0:
        return
    axes, dims = [op.axes()[axis] for axis in order] or [_WHOLE], x.shape or (1,)
    moving = [axis for axis, window in enumerate(axes) if replace(window, dilation=1) != _WHOLE]
    row = moving[-1] if moving else 0
    inner = math.prod(dims[row + 1 :])
    plan = _Plan(axes, dims, row, inner, inner)
    accumulator = op.accumulator(unit.last.operands[0].type)
    start = _start(op.kind, accumulator, axes, dims)
    kernel = kernels.reduce_windows(
        op.kind, constant(start, accumulator), x.dtype, accumulator, out.dtype
    )
    builder.call_tasks(
        compiled_task(kernel),
        plan.tasks,
        (x, x),
        out,
        plan.geometry(),
        builder.threads_from(_PARALLEL_FROM, out.size * math.prod(op.window)),
    )


_WHOLE = ops.AxisWindow(size=1, stride=1, low=0, high=0, dilation=1)
"""The window that leaves an axis as it is."""


def _start(
    kind: str, accumulator: DType, axes: Sequence[ops.AxisWindow], dims: Shape
) -> float | int:
    """Return the identity; -0.0 for sums if no window is empty, so that -0.0 keeps its sign."""
    if kind == "sum" and accumulator.is_float and all(map(_meets_all, axes, dims)):
        return -0.0
    return identity(kind, accumulator)


def _meets_all(axis: ops.AxisWindow, dim: int) -> bool:
    """Return whether the window meets an element at every position."""
    if axis == _WHOLE:
        return True
    # Not the larger of both: which it is may change with a free size, and ask for another program.
    fits = axis.low < axis.size and axis.high < axis.size
    if axis.dilation == 1 and fits and dim >= 1:
        return True
    need_numbers([dim])
    begin = np.arange(axis.positions(dim)) * axis.stride - axis.low
    first = np.maximum(0, -(begin // axis.dilation))
    return bool(((first < axis.size) & (begin + first * axis.dilation < dim)).all())


@TABLE.register(ops.ExtractPatches, dtypes=MOVABLE)
def extract_patches(builder: ScheduleBuilder, unit: Unit) -> None:
    """Copy runs of elements; with no spatial axes bind the operand itself."""
    op = unit.last.op
    assert isinstance(op, ops.ExtractPatches)
    x = builder.view(unit.last.operands[0])
    if len(x.shape) == 2:
        builder.bind(unit.last.result, x)
        return
    if unit.last.result.type.size == 0:
        builder.define(unit.last.result)
        return
    value = np.zeros((), x.dtype.numpy) if op.value is None else op.value.array
    if len(op.window) == 1 and _may_overlap(*op.axes()):
        builder.bind(unit.last.result, _overlapping(builder, x, value, *op.axes()))
        return
    out = builder.define(unit.last.result)
    plan = _Plan((_WHOLE, *op.axes()), x.shape[:-1], len(op.window), x.shape[-1], out.shape[-1])
    builder.call_tasks(
        compiled_task(kernels.patches(x.dtype.itemsize)),
        plan.tasks,
        (builder.contiguous(x), builder.constant(value)),
        out,
        plan.geometry(),
        builder.threads_from(_PARALLEL_FROM, out.size),
    )


def _may_overlap(axis: ops.AxisWindow) -> bool:
    """Return whether windows are contiguous runs of the padded sequence that together cover it."""
    return axis.dilation == 1 and min(axis.low, axis.high) >= 0 and axis.stride <= axis.size


def _overlapping(
    builder: ScheduleBuilder, x: View, value: np.ndarray, axis: ops.AxisWindow
) -> View:
    """Return the windows [N, positions, K * C] of sequences [N, W, C] without copies of them."""
    batch, width, channels = x.shape
    whole = x if axis.low == axis.high == 0 else _padded(builder, x, value, axis)
    whole = builder.contiguous(whole)
    return replace(
        whole,
        shape=(batch, axis.positions(width), axis.size * channels),
        strides=(whole.shape[1] * channels, axis.stride * channels, 1),
    )


def _padded(builder: ScheduleBuilder, x: View, value: np.ndarray, axis: ops.AxisWindow) -> View:
    batch, width, channels = x.shape
    whole = builder.fresh(x.dtype, (batch, axis.padded(width), channels))
    filling = replace(builder.constant(value), dtype=x.dtype)
    ones = (1, 1, 1)
    for start, size in ((0, axis.low), (axis.low + width, axis.high)):
        if size:
            part = whole.sliced((0, start, 0), (batch, size, channels), ones)
            builder.copy(filling.broadcast(part.shape), part)
    builder.copy(x, whole.sliced((0, axis.low, 0), x.shape, ones))
    return whole
