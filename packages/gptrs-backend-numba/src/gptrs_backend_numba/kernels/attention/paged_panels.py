"""Attention over pages for a panel of rows that share their keys, block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.attention_ir import (
    LARGEST_SCORE_ROWS,
    ROWS,
    hide_from_panel,
    hide_until_panel,
    prefetch_row,
    softmax_pages_panel,
)
from gptrs_backend_numba.kernels.attention.many_queries import transpose_4
from gptrs_backend_numba.kernels.attention.paged_geometry import (
    BLOCK,
    GROUP,
    HEAD_STEP,
    KV_HEADS,
    ROW_STEP,
    SCALE,
    SINKS,
    SOFTCAP,
    TABLE,
    VALUES,
    WIDTH_OF_TABLE,
    WINDOW,
    PageKind,
    end_seen,
    find_segments,
    first_seen,
)
from gptrs_backend_numba.kernels.attention.paged_ir import page_score_tile, page_value_tile
from gptrs_backend_numba.kernels.attention.paged_rows import INF, cap_scores
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL


class Panel(NamedTuple):
    """Columns of a text: row `column // group` and head `column % group` of those of a key head."""

    head: int
    begin: int
    first: int
    count: int
    ahead: int


class Memory(NamedTuple):
    """Addresses in the memory of a task; a row of a panel is `PANEL` numbers."""

    segments: int
    queries: int
    """A row of a panel for each number of a query."""
    sums: int
    """A row of a panel for each number of a value."""
    scores: int
    """A row of a panel for each position of a block."""
    totals: int
    """`WIDTH` rows of sums of exponentials."""
    maxima: int
    """The largest score so far of each column."""
    factors: int
    """The factors that rescale the sums."""
    limits: int
    """The end of the positions that each column sees, int32."""
    firsts: int
    """The first position that each column sees, int32."""
    keys: int
    """Those of a block as f32, if they are not f32."""
    values: int
    """Those of a block as f32, if they are not f32."""


@kernel
def attend_panel_kernel(
    query, key, out, geometry, head, text, begin, first, count, ahead,
    *, HEAD_DIM, VALUE_DIM, PAGE, SEGMENTS, WINDOWED, CAPPED, SUNK, NARROW, load_queries,
    segments_of, widen, score_keys, add_values, store_results,
):  # fmt: skip
    """Compute `count` columns of a text from `first` on; see `paged_geometry`."""
    G = pointer(geometry, np.int64)
    size = G[WIDTH_OF_TABLE] * PAGE
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    cap = pointer(geometry + 8 * SOFTCAP, np.float32)[0]
    table = G[TABLE] + 4 * text * G[WIDTH_OF_TABLE]
    panel = Panel(head, begin, first, count, ahead)
    numbers = PANEL * (HEAD_DIM + VALUE_DIM + BLOCK + WIDTH + 4)
    widened = NARROW * BLOCK * (HEAD_DIM + VALUE_DIM)
    held = np.empty(numbers + widened + 8 * SEGMENTS + 16, np.float32)
    memory = memory_at(held.ctypes.data, HEAD_DIM, VALUE_DIM, SEGMENTS)
    lowest, highest, until, least = limit_columns(G, panel, memory, size, WINDOWED)
    load_queries(query, G, panel, memory, scale)
    clear(memory, VALUE_DIM)
    if SUNK:
        begin_with_sinks(G, panel, memory)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        low, high = max(lowest - block, np.int64(0)), min(highest - block, np.int64(BLOCK))
        parts = segments_of(table, block, low, high, memory.segments, key, G[VALUES], head,
                            G[KV_HEADS])  # fmt: skip
        if NARROW:
            widen(memory, parts)
            parts = np.int64(1)
        score_keys(memory, parts)
        rows = memory.scores + 4 * PANEL * low
        if CAPPED:
            cap_scores(rows, PANEL * (high - low), cap)
        if block + high > least:
            hide_from_panel(rows, high - low, memory.limits, block + low)
        if WINDOWED and block + low < until:
            hide_until_panel(rows, high - low, memory.firsts, block + low)
        start, groups = low // WIDTH, (high + WIDTH - 1) // WIDTH
        hide_rows(memory.scores, start * WIDTH, low)
        hide_rows(memory.scores, high, groups * WIDTH)
        softmax_pages_panel(memory.scores + 4 * PANEL * WIDTH * start, groups - start,
                            memory.maxima, memory.totals, memory.factors)  # fmt: skip
        add_values(memory, parts)
    store_results(out, G, panel, memory)
    keep_alive(held)
    return 0


@kernel_part
def memory_at(address, head_dim, value_dim, segment_count):
    """Return where all is in the memory at an address, from a cache line on."""
    segments = (address + 63) // 64 * 64
    queries = segments + 32 * segment_count
    sums = queries + 4 * PANEL * head_dim
    scores = sums + 4 * PANEL * value_dim
    totals = scores + 4 * PANEL * BLOCK
    maxima = totals + 4 * PANEL * WIDTH
    factors, limits, firsts = maxima + 4 * PANEL, maxima + 8 * PANEL, maxima + 12 * PANEL
    keys = maxima + 16 * PANEL
    values = keys + 4 * BLOCK * head_dim
    return Memory(
        segments, queries, sums, scores, totals, maxima, factors, limits, firsts, keys, values
    )


@kernel_part
def limit_columns(G, panel, memory, size, windowed):
    """Write down which positions each column sees.

    Return the first one that any sees and the end of those, then where all see the first one's
    followers from, and up to where.
    """
    L, F = pointer(memory.limits, np.int32), pointer(memory.firsts, np.int32)
    before = panel.begin + panel.ahead
    newest = before + (panel.first + panel.count - 1) // G[GROUP]
    oldest = before + panel.first // G[GROUP]
    lowest, highest = first_seen(oldest, G[WINDOW], windowed), end_seen(newest, size)
    for i in range(PANEL):
        c = panel.first + min(i, panel.count - 1)
        position = before + c // G[GROUP]
        L[i] = end_seen(position, size)
        F[i] = first_seen(position, G[WINDOW], windowed)
    return lowest, highest, first_seen(newest, G[WINDOW], windowed), end_seen(oldest, size)


@kernel_part
def clear(memory, value_dim):
    """Begin all sums."""
    A, T = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    M = pointer(memory.maxima, np.float32)
    for i in range(PANEL * value_dim):
        A[i] = 0.0
    for i in range(PANEL * WIDTH):
        T[i] = 0.0
    for i in range(PANEL):
        M[i] = -INF


@kernel_part
def begin_with_sinks(G, panel, memory):
    """Begin the sums with the score of each head, whose exponential less itself is 1."""
    group = G[GROUP]
    S, T = pointer(G[SINKS], np.float32), pointer(memory.totals, np.float32)
    M = pointer(memory.maxima, np.float32)
    for i in range(PANEL):
        M[i] = S[panel.head * group + (panel.first + i) % group]
        T[i] = 1.0


@kernel_part
def load_panel_queries(query, G, panel, memory, scale, *, ELEMENT, HEAD_DIM, WIDE, load):
    """Put the scaled queries side by side; those behind the last are 0."""
    head, begin, first, count, _ = panel
    group = G[GROUP]
    X, Q = pointer(memory.queries, np.float32), pointer(query, ELEMENT)
    # Four queries at a time, if they are evenly apart: consecutive ones, or heads of one.
    even = WIDE and (group == 1 or group % 4 == 0)
    q_step = G[ROW_STEP] if group == 1 else G[HEAD_STEP]
    squared = HEAD_DIM - HEAD_DIM % 4 if even else 0
    for i in range(PANEL):
        if i < count:
            c = first + i
            n = c // group
            place = (begin + n) * G[ROW_STEP] + (head * group + c - n * group) * G[HEAD_STEP]
            done = np.int64(0)
            if i // 4 * 4 + 4 <= count:
                done = squared
                if i % 4 == 0:
                    for d in range(0, squared, 4):
                        transpose_4(query + 4 * (place + d), 4 * q_step,
                                    memory.queries + 4 * (d * PANEL + i), 4 * PANEL)  # fmt: skip
            for d in range(done, HEAD_DIM):
                X[d * PANEL + i] = load(Q[place + d])
        else:
            for d in range(HEAD_DIM):
                X[d * PANEL + i] = 0.0
    for i in range(HEAD_DIM * PANEL):
        X[i] = X[i] * scale


@kernel_part
def widen_segments(memory, parts, *, ELEMENT, HEAD_DIM, VALUE_DIM, load):
    """Bring the keys and values of all segments to f32, as one segment."""
    S = pointer(memory.segments, np.int64)
    K, V = pointer(memory.keys, np.float32), pointer(memory.values, np.float32)
    row = np.int64(0)
    for part in range(parts):
        key, value = pointer(S[4 * part], ELEMENT), pointer(S[4 * part + 1], ELEMENT)
        count = S[4 * part + 3]
        for i in range(count * HEAD_DIM):
            K[row * HEAD_DIM + i] = load(key[i])
        for i in range(count * VALUE_DIM):
            V[row * VALUE_DIM + i] = load(value[i])
        row += count
    S[0], S[1], S[3] = memory.keys, memory.values, row


@kernel_part
def score_panel_keys(memory, parts, *, HEAD_DIM, FETCHED, tile_largest, tile_4, tile_1):
    """Compute scores of the keys of segments, in tiles from the largest to the smallest.

    Prefetch their values, `FETCHED` bytes a key: the processor alone looks too little ahead.
    """
    S = pointer(memory.segments, np.int64)
    for part in range(parts):
        key, count = S[4 * part], S[4 * part + 3]
        scores = memory.scores + 4 * PANEL * S[4 * part + 2]
        row = np.int64(0)
        if LARGEST_SCORE_ROWS > 4:
            while row + LARGEST_SCORE_ROWS <= count:
                prefetch_row(S[4 * part + 1] + FETCHED * row, FETCHED * LARGEST_SCORE_ROWS)
                tile_largest(key + 4 * HEAD_DIM * row, memory.queries, scores + 4 * PANEL * row)
                row += LARGEST_SCORE_ROWS
        while row + 4 <= count:
            prefetch_row(S[4 * part + 1] + FETCHED * row, FETCHED * 4)
            tile_4(key + 4 * HEAD_DIM * row, memory.queries, scores + 4 * PANEL * row)
            row += 4
        while row < count:
            tile_1(key + 4 * HEAD_DIM * row, memory.queries, scores + 4 * PANEL * row)
            row += 1


@kernel_part
def hide_rows(scores, begin, end):
    """Set the scores of positions to -inf for all columns."""
    W = pointer(scores, np.float32)
    for i in range(PANEL * begin, PANEL * end):
        W[i] = -INF


@kernel_part
def add_panel_values(memory, parts, *, VALUE_DIM, tile_largest, tile_4, tile_1):
    """Scale the sums, and add the values of segments times the exponentials of their scores."""
    row = np.int64(0)
    while row + ROWS <= VALUE_DIM:
        tile_largest(memory.segments, parts, 4 * VALUE_DIM, 4 * row, memory.scores,
                     memory.factors, memory.sums + 4 * PANEL * row)  # fmt: skip
        row += ROWS
    while row + 4 <= VALUE_DIM:
        tile_4(memory.segments, parts, 4 * VALUE_DIM, 4 * row, memory.scores,
               memory.factors, memory.sums + 4 * PANEL * row)  # fmt: skip
        row += 4
    while row < VALUE_DIM:
        tile_1(memory.segments, parts, 4 * VALUE_DIM, 4 * row, memory.scores,
               memory.factors, memory.sums + 4 * PANEL * row)  # fmt: skip
        row += 1


@kernel_part
def store_panel_results(out, G, panel, memory, *, ELEMENT, VALUE_DIM, WIDE, store):
    """Divide the sums over values by the sums of exponentials, and store them as elements."""
    head, begin, first, count, _ = panel
    group = G[GROUP]
    A, T, F = (
        pointer(memory.sums, np.float32),
        pointer(memory.totals, np.float32),
        pointer(memory.factors, np.float32),
    )
    for i in range(PANEL):
        F[i] = T[i]
    for j in range(1, WIDTH):
        for i in range(PANEL):
            F[i] += T[j * PANEL + i]
    for i in range(PANEL):
        if F[i] != 0.0:  # else every score is -inf
            F[i] = divide(np.float32(1.0), F[i])
    for e in range(VALUE_DIM):
        for i in range(PANEL):
            A[e * PANEL + i] = A[e * PANEL + i] * F[i] + np.float32(0.0)  # -0 becomes 0
    O = pointer(out, ELEMENT)
    even = WIDE and (group == 1 or group % 4 == 0)
    heads = G[KV_HEADS] * group
    o_step = heads * VALUE_DIM if group == 1 else VALUE_DIM
    squared = VALUE_DIM - VALUE_DIM % 4 if even else 0
    for i in range(count):
        c = first + i
        n = c // group
        place = ((begin + n) * heads + head * group + c - n * group) * VALUE_DIM
        done = np.int64(0)
        if i // 4 * 4 + 4 <= count:
            done = squared
            if i % 4 == 0:
                for e in range(0, squared, 4):
                    transpose_4(memory.sums + 4 * (e * PANEL + i), 4 * PANEL,
                                out + 4 * (place + e), 4 * o_step)  # fmt: skip
        for e in range(done, VALUE_DIM):
            O[place + e] = store(A[e * PANEL + i])


def attend_panel(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the kernel for queries of one type and a kind of pages."""
    wide, narrow = query is dtypes.f32, kind.dtype is not dtypes.f32
    sizes = {"HEAD_DIM": kind.head_dim, "VALUE_DIM": kind.value_dim}
    return attend_panel_kernel.specialize(
        **sizes,
        PAGE=kind.page_size,
        SEGMENTS=kind.segments,
        WINDOWED=kind.windowed,
        CAPPED=kind.capped,
        SUNK=kind.sunk,
        NARROW=narrow,
        segments_of=find_segments(kind),
        load_queries=load_panel_queries.specialize(
            ELEMENT=memory_of(query), HEAD_DIM=kind.head_dim, WIDE=wide, load=load_of(query)
        ),
        widen=widen_segments.specialize(
            **sizes, ELEMENT=memory_of(kind.dtype), load=load_of(kind.dtype)
        ),
        score_keys=score_panel_keys.specialize(
            HEAD_DIM=kind.head_dim,
            FETCHED=0 if narrow else 4 * kind.value_dim,
            tile_largest=page_score_tile(LARGEST_SCORE_ROWS, kind.head_dim),
            tile_4=page_score_tile(4, kind.head_dim),
            tile_1=page_score_tile(1, kind.head_dim),
        ),
        add_values=add_panel_values.specialize(
            VALUE_DIM=kind.value_dim,
            tile_largest=page_value_tile(ROWS),
            tile_4=page_value_tile(4),
            tile_1=page_value_tile(1),
        ),
        store_results=store_panel_results.specialize(
            ELEMENT=memory_of(query), VALUE_DIM=kind.value_dim, WIDE=wide, store=store_of(query)
        ),
    )
