"""`dot_general`: operands become batches of strided matrices, the shape picks the kernel."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.ops import contraction as ops
from gptrs.ir.size_guards import Shape
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.machine import NUMBERS
from gptrs_backend_numba.cost_model import is_one
from gptrs_backend_numba.kernels import contraction as kernels
from gptrs_backend_numba.lowering import matmul
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Matrix, Product, View, merged_axes

_PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""


@TABLE.register(ops.DotGeneral, dtypes=NUMBERS)
def dot_general(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one kernel call, after copies of operands whose axes do not merge into a matrix."""
    op = unit.last.op
    assert isinstance(op, ops.DotGeneral)
    lhs = unit.last.operands[0].type
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    if any(lhs.shape[axis] == 0 for axis in op.contract_lhs):  # sums of nothing
        zero = builder.constant(np.zeros((), out.dtype.numpy))
        builder.copy(replace(zero, dtype=out.dtype).broadcast(out.shape), out)
        return
    product = product_of(builder, op, unit)
    if is_one(product.rhs.rows):  # a column: its transpose is a row, and the result looks the same
        product = replace(product, lhs=product.rhs, rhs=product.lhs)
    accumulator = op.accumulator(lhs)
    if accumulator is dtypes.f32 and matmul.suits(product, out):
        matmul.multiply(builder, product, out)
        return
    if {accumulator, lhs.dtype, out.dtype} == {dtypes.si32}:
        is_one(product.lhs.rows)
        matmul.multiply_words(builder, product, out)
        return
    builder.call_tasks(
        compiled_task(kernels.contraction(lhs.dtype, accumulator, out.dtype)),
        product.lhs.rows * math.prod(product.batch),
        (product.lhs.view, product.rhs.view),
        out,
        product.geometry(),
        builder.threads_from(_PARALLEL_FROM, product.work),
    )


def product_of(builder: ScheduleBuilder, op: ops.DotGeneral, unit: Unit) -> Product:
    """Return the product of the first two operands of a unit, copied where axes do not merge."""
    lhs, rhs = unit.last.operands[:2]
    batch_rank, contract_rank = len(op.batch_lhs), len(op.contract_lhs)
    left = builder.view(lhs).transposed(op.batch_lhs + op.free_lhs(lhs.type) + op.contract_lhs)
    right = builder.view(rhs).transposed(op.batch_rhs + op.free_rhs(rhs.type) + op.contract_rhs)
    left, right = (_regular(builder, x, batch_rank, contract_rank) for x in (left, right))
    batch = merged_axes(
        left.shape[:batch_rank], [left.strides[:batch_rank], right.strides[:batch_rank]]
    )
    return Product(
        _matrix(left, batch_rank, contract_rank, tuple(strides[0] for _, strides in batch)),
        _matrix(right, batch_rank, contract_rank, tuple(strides[1] for _, strides in batch)),
        math.prod(left.shape[len(left.shape) - contract_rank :]),
        tuple(size for size, _ in batch),
    )


def _parts(view: View, batch_rank: int, contract_rank: int) -> list[list[tuple[int, int]]]:
    """Return the merged (size, stride) axes of the free and of the contracted part."""
    end = len(view.shape) - contract_rank
    ranges = (slice(batch_rank, end), slice(end, None))
    return [
        [(size, stride) for size, (stride,) in merged_axes(view.shape[part], [view.strides[part]])]
        for part in ranges
    ]


def _regular(builder: ScheduleBuilder, view: View, batch_rank: int, contract_rank: int) -> View:
    """Return the view, copied if its free or its contracted axes do not merge into one.

    No axis is empty: `is_contiguous` would hold for any strides.
    """
    if all(len(axes) <= 1 for axes in _parts(view, batch_rank, contract_rank)):
        return view
    return builder.contiguous(view)


def _matrix(view: View, batch_rank: int, contract_rank: int, batch: Shape) -> Matrix:
    free, contracted = _parts(view, batch_rank, contract_rank)
    assert max(len(free), len(contracted)) <= 1, "`_regular` leaves one axis of each"
    (rows, row), (_, column) = (free or [(1, 1)])[0], (contracted or [(1, 1)])[0]
    return Matrix(view, rows, row, column, batch)
