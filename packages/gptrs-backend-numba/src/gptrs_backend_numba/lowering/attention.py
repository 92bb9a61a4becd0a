"""`gptrs.numba.attention.<dtype>.v1`: scaled dot-product attention without its table of scores.

Operands: query [B, H, T, D], key [B, K, S, D], value [B, K, S, E], none of them empty, with any
strides; an i1 mask that broadcasts to [B, H, T, S] if the attribute `mask`; a si64[] offset if
`offset`. The result [B, H, T, E] is that of the functional `attention` for these, `scale` and
`causal`, computed in f32 and rounded once. What is hidden is not read where whole keys are. A query
whose every score is -inf gives 0 with the attribute `guard` "blind", NaN with "none", which a
program has that writes attention with a plain softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.shapes import broadcastable_to
from gptrs.ir.size_guards import select
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.attention.geometry import GUARDS
from gptrs_backend_numba.kernels.attention.many_queries import attention_panels
from gptrs_backend_numba.kernels.attention.single_query import attention_row
from gptrs_backend_numba.kernels.five_operand_tasks import run_with_extra
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_attention
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.size_classes import either
from gptrs_backend_numba.views import View

_FEW = 6
"""Queries that share their keys, up to which a panel of them would be mostly empty."""
PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""
_ATTRIBUTES = {"scale", "causal", "mask", "offset", "guard"}


def attention_target(dtype: DType) -> str:
    """Return the target for operands of this type."""
    return f"gptrs.numba.attention.{dtype}.v1"


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    attrs = op.attrs
    if set(attrs) != _ATTRIBUTES or not isinstance(attrs["scale"], float):
        return False
    flags = [attrs[name] for name in ("causal", "mask", "offset")]
    if not all(isinstance(flag, bool) for flag in flags) or attrs["guard"] not in GUARDS[:2]:
        return False
    if len(operands) != 3 + sum(map(bool, flags[1:])) or (attrs["offset"] and not attrs["causal"]):
        return False
    return _has_main_types(op, operands) and _has_extra_types(op, operands)


def _has_main_types(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    query, key, value = operands[:3]
    same = {x.dtype for x in operands[:3]} == {query.dtype}
    if not same or not query.rank == key.rank == value.rank == 4:
        return False
    batch, heads, length, head_dim = query.shape
    n_kv_heads, keys = key.shape[1:3]
    result = TensorType(query.dtype, (batch, heads, length, value.shape[3]))
    return (
        op.target == attention_target(query.dtype)
        and op.results == (result,)
        and key.shape == (batch, n_kv_heads, keys, head_dim)
        and value.shape[:3] == (batch, n_kv_heads, keys)
        and math.prod(query.shape) * math.prod(key.shape) * math.prod(value.shape) > 0
        and heads % n_kv_heads == 0
    )


def _has_extra_types(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    extra = list(operands[3:])
    if op.attrs["mask"]:
        mask = extra.pop(0)
        shape = (*operands[0].shape[:3], operands[1].shape[2])
        if not mask.dtype.is_bool or not broadcastable_to(mask.shape, shape):
            return False
    return extra in ([], [TensorType(dtypes.si64, ())])


def attention(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add tasks of one query, or of panels of queries; the result lies as [B, T, H, E]."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    query, key, value, *extra = (builder.view(operand) for operand in unit.last.operands)
    query, key, value = (with_dense_rows(builder, view) for view in (query, key, value))
    batch, heads, length, head_dim = query.shape
    value_dim = value.shape[3]
    mask = query if not op.attrs["mask"] else extra.pop(0)
    offset = extra.pop(0) if extra else query
    out = builder.fresh(query.dtype, (batch, length, heads, value_dim))
    builder.bind(unit.last.result, out.transposed((0, 2, 1, 3)))
    n_kv_heads = key.shape[1]
    columns = heads // n_kv_heads * length
    few = _FEW - columns
    task = either(
        few,
        lambda: compiled_task(attention_row(query.dtype)),
        lambda: compiled_task(attention_panels(query.dtype)),
    )
    count = batch * n_kv_heads * select(few, columns, -(-columns // PANEL))
    work = batch * heads * length * key.shape[2] * (head_dim + value_dim)
    threads = builder.threads_from(PARALLEL_FROM, work)
    fields = fields_of(op.attrs, query, key, value, mask, out)
    if amx_attention.suits(fields, columns):
        fields |= amx_attention.division(fields, threads, batch * n_kv_heads, columns)
        fields[geometry.VECTOR_TASK] = task
        task, count = amx_attention.task(query.dtype, head_dim), fields[geometry.TASKS]
    numbers = [fields.get(field, 0) for field in geometry.FIELDS]
    reads = (query, key, value, mask, offset)
    builder.add_job(compiled(run_with_extra), (task, count, threads), reads, out, numbers)


def with_dense_rows(builder: ScheduleBuilder, view: View) -> View:
    """Return the view, copied unless the elements of its last axis are contiguous."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else builder.contiguous(view)


def fields_of(
    attrs: Dictionary, query: View, key: View, value: View, mask: View, out: View
) -> dict[int, int]:
    """Return the fields of a geometry for these operands; `mask` may be any if there is none."""
    batch, heads, length, head_dim = query.shape
    n_kv_heads, keys = key.shape[1:3]
    fields = {
        geometry.KV_HEADS: n_kv_heads,
        geometry.GROUP: heads // n_kv_heads,
        geometry.T: length,
        geometry.S: keys,
        geometry.HEAD_DIM: head_dim,
        geometry.VALUE_DIM: value.shape[3],
        geometry.MASKED: int(bool(attrs["mask"])),
        geometry.CAUSAL: int(bool(attrs["causal"])),
        geometry.IS_OFFSET_GIVEN: int(bool(attrs["offset"])),
        geometry.DEFAULT_OFFSET: keys - length,
        geometry.SCALE: float_bits(attrs["scale"]),
        geometry.GUARD: GUARDS.index(str(attrs["guard"])),
    }
    if attrs["mask"]:
        seen = mask.broadcast((batch, heads, length, keys))
        places = (geometry.MB, geometry.MH, geometry.MT, geometry.MS)
        fields |= dict(zip(places, seen.strides, strict=True))
    strides = (
        (geometry.QB, geometry.QH, geometry.QT, query),
        (geometry.KB, geometry.KH, geometry.KS, key),
        (geometry.VB, geometry.VH, geometry.VS, value),
        (geometry.OB, geometry.OT, geometry.OH, out),
    )
    for *places, view in strides:
        fields |= dict(zip(places, view.strides[:3], strict=True))
    return fields


def float_bits(number: object) -> int:
    """Return the bits of a float as f32."""
    assert isinstance(number, float)
    return int(np.float32(number).view(np.uint32))


for _dtype in FLOATS:
    custom_call(attention_target(_dtype), when=_when)(attention)
