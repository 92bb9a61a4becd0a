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
from collections.abc import Mapping, Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import broadcastable_to, greatest, least, select
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.cost_model import either
from gptrs_backend_numba.kernels.amx import attention as kernels
from gptrs_backend_numba.kernels.amx.attention_operands import KEYS
from gptrs_backend_numba.kernels.amx.gemm_ir import MOST_PARTS, STEP
from gptrs_backend_numba.kernels.attention import geometry
from gptrs_backend_numba.kernels.attention.geometry import GUARDS
from gptrs_backend_numba.kernels.attention.many_queries import attention_panels
from gptrs_backend_numba.kernels.attention.single_query import attention_row
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

# Attention of many queries with AMX, where the processor has it.


_LEAST_COLUMNS, _LEAST_KEYS = 32, 64
"""Queries that share keys, and keys: below these the vector units are as fast. They are, too, where
padding to whole steps adds more than a quarter to the numbers."""
_PANEL_BYTES, _CHUNK_BYTES = 5 << 17, 1 << 19
"""The most that the panels of a task and the parts of a chunk of keys take: together they stay in
the L2 cache."""
_TASKS_A_THREAD = 2
"""Enough for threads that are not equally fast, and for matrices that do not divide evenly; 1 and 4
were slower."""
_LEAST_PANELS = 4
"""In a task, if there are as many: each task splits all keys that its panels see."""


def suits(fields: Mapping[int, int], columns: int) -> bool:
    """Return whether AMX is there, and faster for `columns` queries that share keys."""
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    numbers = fields[geometry.HEAD_DIM] + fields[geometry.VALUE_DIM]
    if not is_wanted() or 4 * sum(_padded(fields)) > 5 * numbers:
        return False
    return columns >= _LEAST_COLUMNS and fields[geometry.S] >= _LEAST_KEYS


def _padded(fields: Mapping[int, int]) -> tuple[int, int]:
    """Return head_dim and value_dim, rounded up to whole steps."""
    head_dim, value_dim = fields[geometry.HEAD_DIM], fields[geometry.VALUE_DIM]
    return -(-head_dim // STEP) * STEP, -(-value_dim // STEP) * STEP


def amx_task(dtype: DType, head_dim: int) -> int:
    """Return the address of the compiled task."""
    return compiled_task(kernels.amx_attention(dtype, head_dim))


def division(
    fields: Mapping[int, int], threads: int, matrices: int, columns: int
) -> dict[int, int]:
    """Return the fields that say how work is divided, which no result depends on.

    The panels of a matrix are dealt to its tasks in turn, so that all have about as much to do if
    later queries see more.
    """
    panels = -(-columns // PANEL)
    head_dim, value_dim = _padded(fields)
    most = greatest(1, _PANEL_BYTES // (PANEL * (2 * MOST_PARTS * head_dim + 4 * value_dim)))
    tasks = 1 if threads == 1 else -(-_TASKS_A_THREAD * threads // matrices)
    tasks = greatest(least(tasks, -(-panels // _LEAST_PANELS)), -(-panels // most))
    chunk = _CHUNK_BYTES // (2 * MOST_PARTS * (head_dim + value_dim)) // KEYS * KEYS
    chunk = least(greatest(chunk, 2 * KEYS), -(-fields[geometry.S] // KEYS) * KEYS)
    return {
        geometry.TASKS_A_MATRIX: tasks,
        geometry.CHUNK: chunk,
        geometry.TASKS: tasks * matrices,
        geometry.THREADS: threads,
    }


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
    query, key, value = (builder.with_dense_rows(view) for view in (query, key, value))
    batch, heads, length, head_dim = query.shape
    value_dim = value.shape[3]
    mask = query if not op.attrs["mask"] else extra.pop(0)
    offset = extra.pop(0) if extra else query
    out = builder.fresh(query.dtype, (batch, length, heads, value_dim))
    builder.bind(unit.last.result, out.transposed((0, 2, 1, 3)))
    n_kv_heads = key.shape[1]
    columns = heads // n_kv_heads * length
    # A difference, since it may be symbolic: then both kernels are compiled, and a run chooses.
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
    # AMX last: its task falls back on the one of vectors for panels that are not finite.
    if suits(fields, columns):
        fields |= division(fields, threads, batch * n_kv_heads, columns)
        fields[geometry.VECTOR_TASK] = task
        task, count = amx_task(query.dtype, head_dim), fields[geometry.TASKS]
    numbers = [fields.get(field, 0) for field in geometry.FIELDS[OTHERS:]]
    reads = (query, key, value, mask, offset)
    builder.add_job_of_many((task, count, threads), reads, out, numbers)


def fields_of(
    attrs: Dictionary, query: View, key: View, value: View, mask: View, out: View
) -> dict[int, int]:
    """Return the fields of a geometry for these operands; an absent `mask` is any view."""
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
        steps = (geometry.MB, geometry.MH, geometry.MT, geometry.MS)
        fields |= dict(zip(steps, seen.strides, strict=True))
    strides = (
        (geometry.QB, geometry.QH, geometry.QT, query),
        (geometry.KB, geometry.KH, geometry.KS, key),
        (geometry.VB, geometry.VH, geometry.VS, value),
        (geometry.OB, geometry.OT, geometry.OH, out),
    )
    for *steps, view in strides:
        fields |= dict(zip(steps, view.strides[:3], strict=True))
    return fields


def float_bits(number: object) -> int:
    """Return the bits of a float as f32."""
    assert isinstance(number, float)
    return int(np.float32(number).view(np.uint32))


for _dtype in FLOATS:
    custom_call(attention_target(_dtype), when=_when)(attention)


# `gptrs.numba.biased_attention.f32.v1`: attention whose scores have a bias, without their table.
#
# Operands: query [B, H, T, D], key [B, H, S, D], value [B, H, S, E] and a bias [B, H, T, S], all of
# f32, none of them empty, with any strides. The result [B, H, T, E] is
# `softmax(scale * Q K^T + bias) V`. A query whose every score is -inf gives NaN with the attribute
# `guard` "none", 0 with "blind" and "nan"; with "nan" so does one with a NaN among its scores.


TARGET = "gptrs.numba.biased_attention.f32.v1"


def _when_biased(op: CustomCall, operands: Sequence[TensorType]) -> bool:
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
    query, key, value = (builder.with_dense_rows(view) for view in operands)
    batch, heads, length, head_dim = query.shape
    keys, value_dim = value.shape[2:]
    out = builder.fresh(query.dtype, (batch, length, heads, value_dim))
    builder.bind(unit.last.result, out.transposed((0, 2, 1, 3)))
    attrs = Dictionary.of(dict(op.attrs.items), mask=True, causal=False, offset=False)
    # The bias takes the fields of the mask, which would be read as truth values if MASKED were 1.
    fields = fields_of(attrs, query, key, value, bias, out) | {geometry.MASKED: 0}
    work = batch * heads * length * keys * (head_dim + value_dim)
    threads = builder.threads_from(PARALLEL_FROM, work)
    task = compiled_task(attention_panels(dtypes.f32, biased=True))
    count = batch * heads * -(-length // PANEL)
    numbers = [fields.get(field, 0) for field in geometry.FIELDS[OTHERS:]]
    reads = (query, key, value, bias)
    builder.add_job_of_many((task, count, threads), reads, out, numbers)


custom_call(TARGET, when=_when_biased)(biased_attention)
