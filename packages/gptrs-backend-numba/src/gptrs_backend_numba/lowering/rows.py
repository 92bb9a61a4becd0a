"""`gptrs.numba.<kind>.<dtype>.v1` of norms and softmax over the last axis.

Operands: x [.., N]; a weight [N] if the attribute `weight`; a bias [N] if `bias`, for `layer_norm`
alone. The attribute `epsilon` is that of the functional; `softmax` and `safe_softmax` have no
attributes. The result [.., N] is computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.axis_lines import lines
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.kernels import rows as kernels
from gptrs_backend_numba.kernels.five_operand_tasks import EXTRA, run_with_extra
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

_PARALLEL_FROM = 32_768
"""Elements from which it pays to share the work: waking a worker takes microseconds."""
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
    along = lines(x, len(x.shape) - 1)
    epsilon = op.attrs["epsilon"] if _FLAGS[_kind(op)] else 0.0
    assert isinstance(epsilon, float)
    bits = int(np.float64(epsilon).view(np.int64))
    sizes = [along.count, along.block, along.length, along.step]
    geometry = [*[0] * EXTRA, *sizes, bits, *along.geometry()]
    threads = builder.threads_from(_PARALLEL_FROM, along.work)
    job = (compiled_task(_task_kernel(op, x)), along.tasks, threads)
    builder.add_job(compiled(run_with_extra), job, (x, x, weight, bias, x), out, geometry)


def _has(op: CustomCall, flag: str) -> bool:
    return flag in op.attrs and bool(op.attrs[flag])


def _task_kernel(op: CustomCall, x: View) -> SpecializedKernel:
    kind = _kind(op)
    if not _FLAGS[kind]:
        return kernels.softmax(x.dtype, safe=kind == "safe_softmax")
    return kernels.norm(
        x.dtype,
        centered=kind == "layer_norm",
        weight=_has(op, "weight"),
        bias=_has(op, "bias"),
    )


for _kind_name in KINDS:
    for _dtype in kernels.FLOATS:
        custom_call(rows_target(_kind_name, _dtype), when=_when)(row_kernel)
