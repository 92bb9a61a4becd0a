"""Attention over pages for a panel of rows that share their keys; see `panels`."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.attention_ir import (
    LARGEST_SCORE_ROWS,
    hide_from_panel,
    hide_until_panel,
    softmax_pages_panel,
)
from gptrs_backend_numba.kernels.attention.paged_geometry import (
    BLOCK,
    GROUP,
    HEAD_STEP,
    KV_HEADS,
    ROW_STEP,
    SCALE,
    SINKS,
    SOFTCAP,
    WIDTH_OF_TABLE,
    WINDOW,
    PageKind,
    end_seen,
    find_segments,
    first_seen,
    source_of,
)
from gptrs_backend_numba.kernels.attention.paged_ir import page_score_tile
from gptrs_backend_numba.kernels.attention.paged_rows import cap_scores
from gptrs_backend_numba.kernels.attention.panels import (
    INF,
    Columns,
    attend_blocks,
    clear,
    column_at,
    memory_at,
    memory_size,
    query_loading,
    result_storing,
    score_panel_keys,
    widening,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL


@kernel
def attend_panel_kernel(
    query, key, out, geometry, head, text, begin, first, count, ahead,
    *, HEAD_DIM, VALUE_DIM, PAGE, SEGMENTS, WINDOWED, SUNK, NARROW, load_queries, source_of,
    attend_blocks, store_results,
):  # fmt: skip
    """Compute `count` columns of a text from `first` on; see `paged_geometry`."""
    G = pointer(geometry, np.int64)
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    columns = Columns(G[GROUP], head, first, count)
    source = source_of(G, key, text, head)
    numbers = memory_size(HEAD_DIM, VALUE_DIM, BLOCK, WIDTH, SEGMENTS, NARROW)
    held = np.empty(numbers, np.float32)
    memory = memory_at(held.ctypes.data, HEAD_DIM, VALUE_DIM, BLOCK, WIDTH, SEGMENTS)
    limit_columns(G, columns, memory, begin + ahead, G[WIDTH_OF_TABLE] * PAGE, WINDOWED)
    row_step = G[ROW_STEP]
    load_queries(query, columns, begin * row_step, row_step, G[HEAD_STEP], memory, HEAD_DIM, scale)
    clear(memory, VALUE_DIM, WIDTH)
    if SUNK:
        begin_with_sinks(G, columns, memory)
    L, F = pointer(memory.limits, np.int32), pointer(memory.firsts, np.int32)
    attend_blocks(geometry, columns, source, memory, np.int64(F[0]), np.int64(L[count - 1]),
                  HEAD_DIM, VALUE_DIM)  # fmt: skip
    divide_sums(memory, VALUE_DIM)
    out_step = G[KV_HEADS] * G[GROUP] * VALUE_DIM
    store_results(out, columns, begin * out_step, out_step, VALUE_DIM, memory, VALUE_DIM)
    keep_alive(held)
    return 0


@kernel_part
def limit_columns(G, columns, memory, before, size, windowed):
    """Write down which positions each column sees, which the later ones do from later ones on.

    The position of a row is its number in the text plus `before`. Columns that there are not see
    what the last one does.
    """
    L, F = pointer(memory.limits, np.int32), pointer(memory.firsts, np.int32)
    for i in range(PANEL):
        row, _head = column_at(columns, min(i, columns.count - 1))
        L[i] = end_seen(before + row, size)
        F[i] = first_seen(before + row, G[WINDOW], windowed)


@kernel_part
def begin_with_sinks(G, columns, memory):
    """Begin the sums with the score of each head, whose exponential less itself is 1."""
    S, T = pointer(G[SINKS], np.float32), pointer(memory.totals, np.float32)
    M = pointer(memory.maxima, np.float32)
    for i in range(PANEL):
        _row, head = column_at(columns, i)
        M[i] = S[head]
        T[i] = 1.0


@kernel_part
def weigh_scores(geometry, columns, source, memory, block, low, high, *, WINDOWED, CAPPED):
    """Cap and hide the scores of the positions from `low` to `high` of a block; exponentiate them.

    The sums are by position modulo `WIDTH`: positions before and behind count as nothing.
    """
    L, F = pointer(memory.limits, np.int32), pointer(memory.firsts, np.int32)
    rows = memory.scores + 4 * PANEL * low
    if CAPPED:
        cap = pointer(geometry + 8 * SOFTCAP, np.float32)[0]
        cap_scores(rows, PANEL * (high - low), cap)
    if block + high > L[0]:
        hide_from_panel(rows, high - low, memory.limits, block + low)
    if WINDOWED:
        if block + low < F[columns.count - 1]:
            hide_until_panel(rows, high - low, memory.firsts, block + low)
    # Whole groups, as for a row alone: each position goes to the same lane in any company.
    start, groups = low // WIDTH, (high + WIDTH - 1) // WIDTH
    hide_rows(memory.scores, start * WIDTH, low)
    hide_rows(memory.scores, high, groups * WIDTH)
    softmax_pages_panel(memory.scores + 4 * PANEL * WIDTH * start, groups - start, memory.maxima,
                        memory.totals, memory.factors)  # fmt: skip


@kernel_part
def hide_rows(scores, begin, end):
    """Set the scores of positions to -inf for all columns."""
    W = pointer(scores, np.float32)
    for i in range(PANEL * begin, PANEL * end):
        W[i] = -INF


@kernel_part
def divide_sums(memory, value_dim):
    """Divide the sums over values by the sums of exponentials."""
    A, T = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    F = pointer(memory.factors, np.float32)
    for i in range(PANEL):
        F[i] = T[i]
    for j in range(1, WIDTH):
        for i in range(PANEL):
            F[i] += T[j * PANEL + i]
    for i in range(PANEL):
        if F[i] != 0.0:  # else every score is -inf
            F[i] = divide(np.float32(1.0), F[i])
    for e in range(value_dim):
        for i in range(PANEL):
            A[e * PANEL + i] = A[e * PANEL + i] * F[i] + np.float32(0.0)  # -0 becomes 0


def attend_panel(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the kernel for queries of one type and a kind of pages."""
    narrow = kind.dtype is not dtypes.f32
    return attend_panel_kernel.specialize(
        HEAD_DIM=kind.head_dim,
        VALUE_DIM=kind.value_dim,
        PAGE=kind.page_size,
        SEGMENTS=kind.segments,
        WINDOWED=kind.windowed,
        SUNK=kind.sunk,
        NARROW=narrow,
        load_queries=query_loading(query),
        source_of=source_of(kind),
        attend_blocks=attend_blocks.specialize(
            BLOCK=BLOCK,
            NARROW=narrow,
            segments_of=find_segments(kind),
            widen=widening(kind.dtype),
            score_keys=score_panel_keys.specialize(
                PREFETCHES=not narrow,
                tile_largest=page_score_tile(LARGEST_SCORE_ROWS, kind.head_dim),
                tile_4=page_score_tile(4, kind.head_dim),
                tile_1=page_score_tile(1, kind.head_dim),
            ),
            weigh_scores=weigh_scores.specialize(WINDOWED=kind.windowed, CAPPED=kind.capped),
        ),
        store_results=result_storing(query),
    )
