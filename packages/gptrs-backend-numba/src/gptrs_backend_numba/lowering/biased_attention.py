"""`gptrs.numba.biased_attention.f32.v1`: attention whose scores have a bias, without their table.

Operands: query [B, H, T, D], key [B, H, S, D], value [B, H, S, E] and a bias [B, H, T, S], all of
f32, none of them empty, with any strides. The result [B, H, T, E] is
`softmax(scale * Q K^T + bias) V`. A query whose every score is -inf gives NaN with the attribute
`guard` "none", 0 with "blind" and "nan"; with "nan" so does one with a NaN among its scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.attention.many_queries import attention_panels
from gptrs_backend_numba.kernels.five_operand_tasks import run_with_extra
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.attention import PARALLEL_FROM, fields_of, with_dense_rows
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder

TARGET = "gptrs.numba.biased_attention.f32.v1"


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    attrs = op.attrs
    if set(attrs) != {"scale", "guard"} or not isinstance(attrs["scale"], float):
        return False
    if attrs["guard"] not in geometry.GUARDS or len(operands) != 4:
        return False
    query, key, value, bias = operands
    if {x.dtype for x in operands} != {dtypes.f32} or {x.rank for x in operands} != {4}:
        return False
    batch, heads, length, head_dim = query.shape
    keys, value_dim = value.shape[2:]
    return (
        op.target == TARGET
        and op.results == (TensorType(dtypes.f32, (batch, heads, length, value_dim)),)
        and key.shape == (batch, heads, keys, head_dim)
        and value.shape[:2] == (batch, heads)
        and bias.shape == (batch, heads, length, keys)
        and math.prod(query.shape) * math.prod(value.shape) > 0
    )


def biased_attention(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add tasks of panels of queries; the result lies as [B, T, H, E]."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    *operands, bias = (builder.view(operand) for operand in unit.last.operands)
    query, key, value = (with_dense_rows(builder, view) for view in operands)
    batch, heads, length, head_dim = query.shape
    keys, value_dim = value.shape[2:]
    out = builder.fresh(query.dtype, (batch, length, heads, value_dim))
    builder.bind(unit.last.result, out.transposed((0, 2, 1, 3)))
    attrs = Dictionary.of(dict(op.attrs.items), mask=True, causal=False, offset=False)
    fields = fields_of(attrs, query, key, value, bias, out) | {geometry.MASKED: 0}
    work = batch * heads * length * keys * (head_dim + value_dim)
    threads = builder.threads_from(PARALLEL_FROM, work)
    task = compiled_task(attention_panels(dtypes.f32, biased=True))
    count = batch * heads * -(-length // PANEL)
    numbers = [fields.get(field, 0) for field in geometry.FIELDS]
    reads = (query, key, value, bias, query)
    builder.add_job(compiled(run_with_extra), (task, count, threads), reads, out, numbers)


custom_call(TARGET, when=_when)(biased_attention)
