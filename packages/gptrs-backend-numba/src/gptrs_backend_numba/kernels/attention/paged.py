"""The task of attention over pages: a few rows or a panel of them, and the call of all tasks."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import ranges_of, share_tasks
from gptrs_backend_numba.kernels.attention.paged_geometry import (
    LENGTHS,
    PAGES,
    PRODUCTS_A_KEY,
    RANGES,
    ROW_BYTES,
    ROWS,
    SINKS,
    STARTS,
    TABLE,
    TASKS,
    TEXTS,
    VALUES,
    WIDTH_OF_TABLE,
    PageKind,
    bounded,
    rows_of_task,
)
from gptrs_backend_numba.kernels.attention.paged_panels import attend_panel
from gptrs_backend_numba.kernels.attention.paged_rows import attend_rows
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

FEW = PANEL // 2 - 1
"""Rows that share their keys, up to which a panel of them takes longer than one after another.

One core with AVX2, 500 positions of 12 heads of 64 numbers, f32: 36 us a row, 370 us a panel.
"""
PARALLEL_FROM = 32_768
"""Products from which it pays to share the work: waking a worker takes microseconds."""


@kernel
def paged_attention_task(query, key, out, geometry, task, *, rows_kernel, panel_kernel):
    """Compute rows of one text; see `paged_geometry`."""
    G = pointer(geometry, np.int64)
    head = task // G[TASKS]
    rows = rows_of_task(geometry, task - head * G[TASKS])
    # A prompt needs both, since its last panel may have few rows; compiled apart they take 3.9 to
    # 4.5 s of CPU, together 3.5 to 3.9 (AVX2).
    if rows.count > FEW:
        panel_kernel(query, key, out, geometry, head, rows.text, rows.begin, rows.first,
                     rows.count, rows.ahead)  # fmt: skip
    elif rows.count > 0:
        rows_kernel(query, key, out, geometry, task, head, rows.text, rows.begin, rows.first,
                    rows.count, rows.ahead)  # fmt: skip
    return 0


@kernel
def run_paged_attention(
    state, function, count, threads,
    query, key, value, table, starts, lengths, sinks, out, geometry,
):  # fmt: skip
    """Run all tasks; return 1, before any, when a page of the table is out of range.

    Rows of no text become 0. The work depends on the lengths, so it is decided here whether threads
    share it.
    """
    G = pointer(geometry, np.int64)
    G[VALUES], G[TABLE], G[STARTS], G[LENGTHS] = value, table, starts, lengths
    G[SINKS] = sinks
    T = pointer(table, np.int32)
    for i in range(G[TEXTS] * G[WIDTH_OF_TABLE]):
        if T[i] < 0 or T[i] >= G[PAGES]:
            return 1
    O, R = pointer(out, np.uint8), pointer(starts, np.int32)
    first, last = bounded(R[0], G[ROWS]), bounded(R[G[TEXTS]], G[ROWS])
    for i in range(first * G[ROW_BYTES]):
        O[i] = 0
    for i in range(last * G[ROW_BYTES], G[ROWS] * G[ROW_BYTES]):
        O[i] = 0
    shared = threads if products(geometry) >= PARALLEL_FROM else np.int64(1)
    G[RANGES] = ranges_of(count, shared)
    share_tasks(state, function, count, shared, query, key, out, geometry)
    return 0


@register_jitable
def products(geometry):
    """Return about how many products there are, as if each row saw its whole text."""
    G = pointer(geometry, np.int64)
    starts, lengths = pointer(G[STARTS], np.int32), pointer(G[LENGTHS], np.int32)
    total = np.int64(0)
    for text in range(G[TEXTS]):
        rows = np.int64(starts[text + 1]) - np.int64(starts[text])
        total += rows * np.int64(lengths[text])
    return total * G[PRODUCTS_A_KEY]


def paged_attention(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the task for queries of one type and a kind of pages."""
    return paged_attention_task.specialize(
        rows_kernel=attend_rows(query, kind),
        panel_kernel=attend_panel(query, kind),
    )
