"""`gptrs.numba.paged_attention.v1` and `gptrs.numba.update_pages.v1`: a paged key/value cache.

The operands are those of the functionals, the integers si32, `sinks` last if there are any, no D,
E, S, H or K of 0. The attributes of attention are `scale`, `window` (0 for none) and `softcap` (0.0
for none). All other sizes may be symbolic: the kernels take them as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.functionals.normalization import vector_bytes
from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.attention import page_updates
from gptrs_backend_numba.kernels.attention import paged_geometry as geometry
from gptrs_backend_numba.kernels.attention.paged import paged_attention as paged_attention_task
from gptrs_backend_numba.kernels.attention.paged import run_paged_attention
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.attention import float_bits
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import Explain, KernelCall, Read, ScheduleBuilder
from gptrs_backend_numba.views import View

PAGED_ATTENTION = "gptrs.numba.paged_attention.v1"
UPDATE_PAGES = "gptrs.numba.update_pages.v1"
_POOLS = (*FLOATS, dtypes.si8)
"""Element types of pools; those of si8 are of vectors as bytes."""
_ATTRIBUTES = {"scale": float, "window": int, "softcap": float}


def fits_attention(operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel of attention for operands that the functional takes."""
    query, key, value, *others = operands
    texts, sinks = others[:3], others[3:]
    return (
        query.dtype in FLOATS
        and all(x.dtype is dtypes.f32 for x in sinks)
        and key.dtype in _POOLS
        and key.dtype is value.dtype
        and all(x.dtype is dtypes.si32 for x in texts)
        and 0 not in (*query.shape[1:], *key.shape[1:], value.shape[3])
    )


def fits_update(operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel of updates for operands that the functional takes."""
    pool, new, slots = operands
    return (
        pool.dtype in _POOLS
        and new.dtype in FLOATS
        and slots.dtype is dtypes.si32
        and 0 not in pool.shape[1:]
    )


def _is_attention(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if {name: type(op.attrs[name]) for name in op.attrs} != _ATTRIBUTES:
        return False
    ranks = [3, 4, 4, 2, 1, 1, 1]
    if [x.rank for x in operands] not in (ranks, ranks[:-1]) or not fits_attention(operands):
        return False
    query, key, value, table, starts, lengths, *sinks = operands
    rows, heads, head_dim = query.shape
    pages, kv_heads, size, _ = key.shape
    texts = table.shape[0]
    return (
        op.results == (TensorType(query.dtype, (rows, heads, _numbers(value))),)
        and heads % kv_heads == 0
        and key.shape == (pages, kv_heads, size, head_dim + vector_bytes(key))
        and value.shape[:3] == (pages, kv_heads, size)
        and starts.shape == (texts + 1,)
        and lengths.shape == (texts,)
        and all(x.shape == (heads,) for x in sinks)
    )


def _is_update(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if op.attrs or [x.rank for x in operands] != [4, 3, 1] or not fits_update(operands):
        return False
    pool, new, slots = operands
    return op.results == (pool,) and new.shape == (slots.shape[0], pool.shape[1], _numbers(pool))


def _numbers(pool: TensorType) -> int:
    """Return how many numbers a vector of a pool has."""
    return pool.shape[3] - vector_bytes(pool)


@custom_call(PAGED_ATTENTION, when=_is_attention)
def paged_attention(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a call whose tasks find their rows themselves: the most tasks that N and B allow."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    query, *others = (builder.view(operand) for operand in unit.last.operands)
    query = builder.with_dense_rows(query)
    key, value, table, starts, lengths, *sinks = (builder.contiguous(view) for view in others)
    rows, heads, head_dim = query.shape
    pages, kv_heads, size, _ = key.shape
    texts, group = table.shape[0], heads // kv_heads
    value_dim = unit.last.result.type.shape[2]
    out = builder.define(unit.last.result)
    window, softcap = op.attrs["window"], op.attrs["softcap"]
    assert isinstance(window, int)
    tasks = rows * group // PANEL + texts  # `tasks_before` all of them
    fields = {
        geometry.ROWS: rows,
        geometry.TEXTS: texts,
        geometry.WIDTH_OF_TABLE: table.shape[1],
        geometry.PAGES: pages,
        geometry.KV_HEADS: kv_heads,
        geometry.GROUP: group,
        geometry.ROW_STEP: query.strides[0],
        geometry.HEAD_STEP: query.strides[1],
        geometry.TASKS: tasks,
        geometry.SCALE: float_bits(op.attrs["scale"]),
        geometry.SOFTCAP: float_bits(softcap),
        geometry.WINDOW: window,
        geometry.PRODUCTS_A_KEY: heads * (head_dim + value_dim),
        geometry.ROW_BYTES: heads * value_dim * query.dtype.itemsize,
    }
    kind = geometry.PageKind(
        key.dtype, size, head_dim, value_dim, window > 0, softcap != 0, bool(sinks)
    )
    task = compiled_task(paged_attention_task(query.dtype, kind))
    leading = (POOL.address, task, kv_heads * tasks, builder.context.threads)
    numbers = tuple(fields.get(field, 0) for field in geometry.FIELDS)
    reads = (query, key, value, table, starts, lengths, *(sinks or [lengths]))
    explain = _wrong_index("paged_attention", "page", table, key, 1)
    kernel = compiled(run_paged_attention)
    builder.steps.append(KernelCall(kernel, reads, out, numbers, explain, leading))


@custom_call(UPDATE_PAGES, when=_is_update)
def update_pages(builder: ScheduleBuilder, unit: Unit) -> None:
    """Write into the pool if its memory is free after this, else into a copy of it."""
    pool, new, slots = (builder.view(operand) for operand in unit.last.operands)
    new, slots = builder.with_dense_rows(new), builder.contiguous(slots)
    pages, kv_heads, size, _ = pool.shape
    # Tasks read `new` and `slots` while they write the pool.
    shared = any(pool.storage.root is other.storage.root for other in (new, slots))
    target = pool
    if shared or not builder.may_overwrite(pool):
        target = builder.fresh(pool.dtype, pool.shape)
        builder.copy(pool, target)
    builder.bind(unit.last.result, target)
    fields = {
        page_updates.ROWS: new.shape[0],
        page_updates.KV_HEADS: kv_heads,
        page_updates.HEAD_DIM: new.shape[2],
        page_updates.PAGES: pages,
        page_updates.PAGE_SIZE: size,
        page_updates.ROW_STEP: new.strides[0],
        page_updates.HEAD_STEP: new.strides[1],
    }
    task = compiled_task(page_updates.update_pages(new.dtype, pool.dtype))
    leading = (POOL.address, task, kv_heads, builder.context.threads)
    numbers = tuple(fields[field] for field in page_updates.FIELDS)
    explain = _wrong_index("update_pages", "slot", slots, target, size)
    kernel = compiled(page_updates.run_update_pages)
    builder.steps.append(KernelCall(kernel, (new, slots), target, numbers, explain, leading))


def _wrong_index(name: str, noun: str, indices: View, pool: View, each: int) -> Explain:
    """Return a function that states which index is not one of the pages or slots of a pool."""

    def explain(read: Read) -> str:
        limit = read.shape(pool.shape)[0] * each
        found = (int(index) for index in read(indices).reshape(-1))
        wrong = next(index for index in found if not 0 <= index < limit)
        return f"`{name}`: index {wrong} is out of range for {limit} {noun}s"

    return explain
