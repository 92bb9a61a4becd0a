"""`gptrs.numba.grouped_linear.v1`: each row times a matrix of its own choice.

Operands: x f32 [R, I]; weight [G, O, I] of f32, bf16 or f16, with O of at least 8; groups si64 [R].
The result is f32 [R, O]. R may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.matmul.dots_ir import COLUMNS_OF_ONE
from gptrs_backend_numba.kernels.matmul.grouped import FIELDS, grouped, run_grouped
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.pool import POOL
from gptrs_backend_numba.schedule import Explain, KernelCall, Read, ScheduleBuilder
from gptrs_backend_numba.views import View

GROUPED_LINEAR = "gptrs.numba.grouped_linear.v1"
_COLUMNS_A_TASK = 64
_PARALLEL_FROM = 65_536
"""Products from which it pays to share the work."""


def fits_grouped(operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for operands that the functional takes."""
    x, weight, groups = operands
    return (
        x.dtype is dtypes.f32
        and weight.dtype in FLOATS
        and groups.dtype is dtypes.si64
        and weight.shape[1] >= COLUMNS_OF_ONE
        and weight.shape[2] > 0
    )


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if op.attrs or [operand.rank for operand in operands] != [2, 3, 1]:
        return False
    x, weight, groups = operands
    return (
        fits_grouped(operands)
        and x.shape == (groups.shape[0], weight.shape[2])
        and op.results == (x.with_shape((x.shape[0], weight.shape[1])),)
    )


@custom_call(GROUPED_LINEAR, when=_when)
def grouped_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a job with a task for each block of columns."""
    x, weight, groups = (
        builder.contiguous(builder.view(operand)) for operand in unit.last.operands
    )
    out = builder.define(unit.last.result)
    matrices, outputs, inputs = weight.shape
    sizes = {
        "rows": x.shape[0],
        "inputs": inputs,
        "outputs": outputs,
        "matrices": matrices,
        "block": _COLUMNS_A_TASK,
    }
    numbers = tuple(sizes.get(field, 0) for field in FIELDS)
    tasks = -(-outputs // _COLUMNS_A_TASK)
    threads = builder.threads_from(_PARALLEL_FROM, x.size * outputs)
    leading = (POOL.address, compiled_task(grouped(weight.dtype)), tasks, threads)
    kernel, explain = compiled(run_grouped), wrong_group(groups, matrices)
    builder.steps.append(KernelCall(kernel, (x, weight, groups), out, numbers, explain, leading))


def wrong_group(groups: View, limit: int) -> Explain:
    """Return a function that states which group is not one of the matrices."""

    def explain(read: Read) -> str:
        found = (int(group) for group in read(groups).reshape(-1))
        wrong = next(group for group in found if not 0 <= group < limit)
        return f"`grouped_linear`: index {wrong} is out of range for {limit} matrices"

    return explain
