"""`gptrs.numba.rotary.<dtype>.v1`: pairs of components of each row rotated.

Operands: x [A, B, C, D] of <dtype>; cosines and sines [A, B, C, R / 2] of <dtype>, or of f32 where
that has 16 bits. The attribute `interleaved` is that of the functional `rotary`. Each product, sum
and difference is rounded to the type of the tables, the result to <dtype>.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import greatest
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels import rotary as kernels
from gptrs_backend_numba.kernels.five_operand_tasks import EXTRA, run_with_extra
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

_ELEMENTS_A_TASK = 16_384
_PARALLEL_FROM = 2 * _ELEMENTS_A_TASK
"""Elements from which it pays to share the work: those of two tasks."""


def rotary_target(dtype: DType) -> str:
    """Return the target for an x of this type."""
    return f"gptrs.numba.rotary.{dtype}.v1"


def fits_rotary(x: TensorType, table: TensorType) -> bool:
    """Return whether there is a kernel that rotates `x` by tables of the type `table`."""
    return (
        x.dtype in kernels.FLOATS
        and table.dtype in (x.dtype, x.dtype.accumulator)
        and x.rank == 4
        and table.rank == 4
        and x.shape[:3] == table.shape[:3]
        and 2 * table.shape[3] <= x.shape[3]
        and 0 not in (*x.shape, *table.shape)
    )


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if set(op.attrs) != {"interleaved"} or not isinstance(op.attrs["interleaved"], bool):
        return False
    if len(operands) != 3 or operands[1] != operands[2]:
        return False
    x, table, _ = operands
    return op.target == rotary_target(x.dtype) and op.results == (x,) and fits_rotary(x, table)


def rotary(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one pass over blocks of rows; rows may have any strides, so transposes are free."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, cos, sin = (_with_dense_rows(builder, builder.view(v)) for v in unit.last.operands)
    out = builder.define(unit.last.result)
    interleaved = op.attrs["interleaved"] is True
    kernel = kernels.rotary(x.dtype, cos.dtype, interleaved=interleaved)
    half, rows = cos.shape[3], x.size // x.shape[3]
    block = greatest(1, _ELEMENTS_A_TASK // x.shape[3])
    steps = [step for view in (x, cos, sin) for step in view.strides[:3]]
    sizes = [*x.shape[:3], *steps, block, half, x.shape[3] - 2 * half]
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    job = (compiled_task(kernel), -(-rows // block), threads)
    geometry = [*[0] * EXTRA, *sizes]
    builder.add_job(compiled(run_with_extra), job, (x, cos, sin, x, x), out, geometry)


def _with_dense_rows(builder: ScheduleBuilder, view: View) -> View:
    """Return the view, copied unless the elements of each row are contiguous."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else builder.contiguous(view)


for _dtype in kernels.FLOATS:
    custom_call(rotary_target(_dtype), when=_when)(rotary)
