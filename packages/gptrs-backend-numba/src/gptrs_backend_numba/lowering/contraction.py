"""`dot_general`: operands become batches of strided matrices, the shape picks the kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops import contraction as ops
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kernels import contraction as kernels
from gptrs_backend_numba.kernels.compiled import compiled_task
from gptrs_backend_numba.kernels.registers import COMPUTED, can_cast, constant
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Builder
from gptrs_backend_numba.views import View, merged_axes

_PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""
_COLUMNS_A_TASK = 128
_ROWS_A_TASK = 64


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A batch of matrices by strides in elements: rows are free, columns contracted."""

    view: View
    rows: int
    row: int
    column: int
    batch: Shape


@dataclass(frozen=True, slots=True)
class _Product:
    """lhs (m, k) times the transpose of rhs (n, k), for each of a batch."""

    lhs: _Matrix
    rhs: _Matrix
    k: int
    batch: Shape

    @property
    def work(self) -> int:
        """The number of multiplications."""
        return self.lhs.rows * self.rhs.rows * self.k * math.prod(self.batch)

    def geometry(self) -> list[int]:
        """What the kernels read of it, as described in their module."""
        lhs, rhs = self.lhs, self.rhs
        numbers = [lhs.rows, rhs.rows, self.k, lhs.row, lhs.column, rhs.row, rhs.column]
        numbers.append(len(self.batch))
        for strides in (lhs.batch, rhs.batch):
            for size, stride in zip(self.batch, strides, strict=True):
                numbers += [size, stride]
        return numbers


def _when(op: Op, operands: Sequence[TensorType]) -> bool:
    assert isinstance(op, ops.DotGeneral)
    x = operands[0]
    accumulator = op.accumulator(x)
    return can_cast(x.dtype, accumulator) and can_cast(accumulator, op.out_dtype or x.dtype)


@TABLE.register(ops.DotGeneral, dtypes=[d for d in COMPUTED if not d.is_bool], when=_when)
def dot_general(builder: Builder, unit: Unit) -> None:
    """One kernel call, after copies of operands whose axes do not merge into a matrix."""
    op = unit.last.op
    assert isinstance(op, ops.DotGeneral)
    lhs = unit.last.operands[0].type
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    product = _product(builder, op, unit)
    if product.rhs.rows == 1:  # a column: its transpose is a row, and the result looks the same
        product = replace(product, lhs=product.rhs, rhs=product.lhs)
    accumulator = op.accumulator(lhs)
    if lhs.dtype is accumulator is out.dtype is dtypes.f32 and product.k > 0:
        source, block = _f32_source(product)
        tasks = -(-product.rhs.rows // block)
    else:
        source = kernels.any_type_source(lhs.dtype, accumulator, out.dtype)
        tasks = product.lhs.rows
    builder.call_tasks(
        compiled_task(source, {"ZERO": constant(0, accumulator)}),
        tasks * math.prod(product.batch),
        (product.lhs.view, product.rhs.view),
        out,
        product.geometry(),
        parallel=product.work >= _PARALLEL_FROM,
    )


def _f32_source(product: _Product) -> tuple[str, int]:
    """The kernel for the shape and layout, and the columns that one task of it computes."""
    lhs, rhs = product.lhs, product.rhs
    if lhs.rows == 1 and rhs.row == 1:
        return kernels.column_source(_COLUMNS_A_TASK), _COLUMNS_A_TASK
    if lhs.rows == 1 and lhs.column == rhs.column == 1:
        return kernels.row_source(_ROWS_A_TASK), _ROWS_A_TASK
    return kernels.MATRIX_SOURCE, kernels.MATRIX_BLOCK


def _product(builder: Builder, op: ops.DotGeneral, unit: Unit) -> _Product:
    lhs, rhs = unit.last.operands
    batch_rank, contract_rank = len(op.batch_lhs), len(op.contract_lhs)
    left = builder.view(lhs).transposed(op.batch_lhs + op.free_lhs(lhs.type) + op.contract_lhs)
    right = builder.view(rhs).transposed(op.batch_rhs + op.free_rhs(rhs.type) + op.contract_rhs)
    left, right = (_regular(builder, x, batch_rank, contract_rank) for x in (left, right))
    batch = merged_axes(
        left.shape[:batch_rank], [left.strides[:batch_rank], right.strides[:batch_rank]]
    )
    return _Product(
        _matrix(left, batch_rank, contract_rank, tuple(strides[0] for _, strides in batch)),
        _matrix(right, batch_rank, contract_rank, tuple(strides[1] for _, strides in batch)),
        math.prod(left.shape[len(left.shape) - contract_rank :]),
        tuple(size for size, _ in batch),
    )


def _parts(view: View, batch_rank: int, contract_rank: int) -> list[list[tuple[int, int]]]:
    """The merged (size, stride) axes of the free and of the contracted part."""
    end = len(view.shape) - contract_rank
    ranges = (slice(batch_rank, end), slice(end, None))
    return [
        [] if 0 in view.shape[part] else
        [(size, stride) for size, (stride,) in merged_axes(view.shape[part], [view.strides[part]])]
        for part in ranges
    ]  # fmt: skip


def _regular(builder: Builder, view: View, batch_rank: int, contract_rank: int) -> View:
    """The view, copied if its free or its contracted axes do not merge into one."""
    if all(len(axes) <= 1 for axes in _parts(view, batch_rank, contract_rank)):
        return view
    return builder.contiguous(view)


def _matrix(view: View, batch_rank: int, contract_rank: int, batch: Shape) -> _Matrix:
    free, contracted = _parts(view, batch_rank, contract_rank)
    (rows, row), (_, column) = (free or [(1, 1)])[0], (contracted or [(1, 1)])[0]
    return _Matrix(view, rows, row, column, batch)
