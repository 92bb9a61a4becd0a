"""`gptrs.numba.attention_gradient.v1`: the derivative of attention with products of bf16.

Operands: query [B, H, T, D], key [B, K, S, D], value [B, K, S, E] and the cotangent of the result
[B, H, T, E], all of f32; T, S, D and E are multiples of 32. The results are the cotangents of the
first three for `scale` and `causal`, as the composite of that name defines them, but that both
operands of each product are rounded to bf16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.attention.gradient import attention_gradient
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_DOT, STEP
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.attention import PARALLEL_FROM, fields_of
from gptrs_backend_numba.lowering.linear import tile_form
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

ATTENTION_GRADIENT = "gptrs.numba.attention_gradient.v1"


def fits_gradient(operands: Sequence[TensorType]) -> bool:
    """Return whether the processor multiplies bf16, and there is a kernel for these operands."""
    if not (is_wanted() or HAS_DOT) or len(operands) != 4:
        return False
    if {x.dtype for x in operands} != {dtypes.f32} or {x.rank for x in operands} != {4}:
        return False
    query, key, value, cotangent = operands
    if not all(x.is_static and x.size for x in operands):
        return False
    sizes = (*query.shape[2:], *value.shape[2:])
    return (
        all(size % STEP == 0 for size in sizes)
        and key.shape == (query.shape[0], *key.shape[1:2], value.shape[2], query.shape[3])
        and value.shape[:2] == key.shape[:2]
        and query.shape[1] % key.shape[1] == 0
        and cotangent.shape == (*query.shape[:3], value.shape[3])
    )


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    attrs = op.attrs
    return (
        set(attrs) == {"scale", "causal"}
        and isinstance(attrs["scale"], float)
        and isinstance(attrs["causal"], bool)
        and fits_gradient(operands)
        and op.results == tuple(operands[:3])
    )


@custom_call(ATTENTION_GRADIENT, when=_when)
def gradient(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a task for each head of keys; the results lie as [B, T, H, D], one behind another."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    query, key, value, cotangent = (
        builder.with_dense_rows(builder.view(operand)) for operand in unit.last.operands
    )
    batch, heads, length, head_dim = query.shape
    sizes = [math.prod(x.shape) for x in (query, key, value)]
    out = builder.fresh(dtypes.f32, (sum(sizes),))
    begin = 0
    for result, size in zip(unit.last.results, sizes, strict=True):
        b, h, rows, width = result.type.shape
        part = out.sliced((begin,), (size,), (1,)).reshaped((b, rows, h, width))
        assert part is not None, "a contiguous tensor takes any shape"
        builder.bind(result, part.transposed((0, 2, 1, 3)))
        begin += size
    attrs = Dictionary.of(dict(op.attrs.items), mask=False, offset=False, guard="blind")
    fields = fields_of(attrs, query, key, value, query, query)
    steps = (geometry.MB, geometry.MH, geometry.MT)
    fields |= dict(zip(steps, cotangent.strides[:3], strict=True))
    fields[geometry.TASKS] = count = batch * key.shape[1]
    work = 5 * batch * heads * length * key.shape[2] * head_dim
    task = compiled_task(attention_gradient(tile_form()))
    numbers = [fields.get(field, 0) for field in geometry.FIELDS[OTHERS:]]
    job = task, count, builder.threads_from(PARALLEL_FROM, work)
    builder.add_job_of_many(job, (query, key, value, cotangent), out, numbers)
