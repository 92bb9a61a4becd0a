"""Attention over pages of vectors as bytes, and their updates: codes of 8 bits and an f32 scale.

The keys and values of a block are brought to f32 once for all rows that see it, and then computed
with as those of f32 pages. A vector [D] takes D + 4 bytes: see `gptrs.functionals.normalization`.
"""

from __future__ import annotations

import numpy as np

from gptrs.functionals.normalization import SCALE_BYTES
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer, rint
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.page_updates import (
    HEAD_DIM,
    HEAD_STEP,
    KV_HEADS,
    PAGE_SIZE,
    ROW_STEP,
    ROWS,
)
from gptrs_backend_numba.kernels.attention.paged import paged_attention_task
from gptrs_backend_numba.kernels.attention.paged_geometry import (
    BLOCK,
    GROUP,
    SCALE,
    SOFTCAP,
    TABLE,
    VALUES,
    WIDTH_OF_TABLE,
    WINDOW,
    PageKind,
    end_seen,
    find_segments_part,
    first_seen,
)
from gptrs_backend_numba.kernels.attention.paged_geometry import KV_HEADS as HEADS_OF_KEYS
from gptrs_backend_numba.kernels.attention.paged_panels import attend_panel
from gptrs_backend_numba.kernels.attention.paged_rows import attend_rows


@kernel
def attend_rows_int8_kernel(
    query, key, out, geometry, task, head, text, begin, first, count, ahead,
    *, HEAD_DIM, VALUE_DIM, EACH, PAGE, SEGMENTS, WINDOWED, load_rows, segments_of, widen,
    score_keys, weigh_scores, add_values, store_results,
):  # fmt: skip
    """Compute `count` columns of a text from `first` on, as `attend_rows_kernel` does."""
    G = pointer(geometry, np.int64)
    group, size = G[GROUP], G[WIDTH_OF_TABLE] * PAGE
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    cap = pointer(geometry + 8 * SOFTCAP, np.float32)[0]
    table = G[TABLE] + 4 * text * G[WIDTH_OF_TABLE]
    wide = BLOCK * (HEAD_DIM + VALUE_DIM + 1) + 2 * WIDTH + 8 * SEGMENTS + 48
    held = np.empty(count * EACH + wide, np.float32)
    segments = (held.ctypes.data + 63) // 64 * 64
    one, keys = segments + 32 * SEGMENTS, segments + 32 * SEGMENTS + 64
    values = keys + 4 * BLOCK * HEAD_DIM
    scores = values + 4 * BLOCK * VALUE_DIM + 4 * WIDTH
    memory = scores + 4 * (BLOCK + WIDTH)
    S = pointer(one, np.int64)
    load_rows(query, G, head, begin, first, count, memory, scale)
    lowest = first_seen(begin + first // group + ahead, G[WINDOW], WINDOWED)
    highest = end_seen(begin + (first + count - 1) // group + ahead, size)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        start, end = max(lowest - block, np.int64(0)), min(highest - block, np.int64(BLOCK))
        parts = segments_of(table, block, start, end, segments, key, G[VALUES], head,
                            G[HEADS_OF_KEYS])  # fmt: skip
        widen(segments, parts, keys + 4 * HEAD_DIM * start, values + 4 * VALUE_DIM * start)
        for r in range(count):
            position = begin + (first + r) // group + ahead
            low = max(first_seen(position, G[WINDOW], WINDOWED) - block, np.int64(0))
            high = min(end_seen(position, size) - block, np.int64(BLOCK))
            if low < high:
                row = memory + 4 * EACH * r
                sums, maximum = row + 4 * HEAD_DIM, row + 4 * (EACH - 2)
                S[0], S[1] = keys + 4 * HEAD_DIM * low, values + 4 * VALUE_DIM * low
                S[2], S[3] = low, high - low
                score_keys(row, one, np.int64(1), one, scores, block, r, count)
                weigh_scores(scores, low, high, cap, maximum)
                add_values(one, np.int64(1), one, scores, maximum + 4, sums)
    store_results(out, G, head, begin, first, count, memory)
    keep_alive(held)
    return 0


@kernel_part
def widen_int8(segments, parts, keys, values, *, HEAD_DIM, VALUE_DIM, SCALE_BYTES):
    """Bring the keys and values of all segments to f32, one after another."""
    S = pointer(segments, np.int64)
    row = np.int64(0)
    for part in range(parts):
        for i in range(S[4 * part + 3]):
            at = S[4 * part] + i * (HEAD_DIM + SCALE_BYTES)
            codes, number = pointer(at, np.int8), pointer(at + HEAD_DIM, np.float32)[0]
            K = pointer(keys + 4 * HEAD_DIM * (row + i), np.float32)
            for d in range(HEAD_DIM):
                K[d] = np.float32(codes[d]) * number
            at = S[4 * part + 1] + i * (VALUE_DIM + SCALE_BYTES)
            codes, number = pointer(at, np.int8), pointer(at + VALUE_DIM, np.float32)[0]
            V = pointer(values + 4 * VALUE_DIM * (row + i), np.float32)
            for d in range(VALUE_DIM):
                V[d] = np.float32(codes[d]) * number
        row += S[4 * part + 3]


@kernel_part
def widen_panel_int8(memory, parts, *, HEAD_DIM, VALUE_DIM, SCALE_BYTES):
    """Do what `widen_segments` does for pages of floats: all segments become one."""
    S = pointer(memory.segments, np.int64)
    row = np.int64(0)
    for part in range(parts):
        for i in range(S[4 * part + 3]):
            at = S[4 * part] + i * (HEAD_DIM + SCALE_BYTES)
            codes, number = pointer(at, np.int8), pointer(at + HEAD_DIM, np.float32)[0]
            K = pointer(memory.keys + 4 * HEAD_DIM * (row + i), np.float32)
            for d in range(HEAD_DIM):
                K[d] = np.float32(codes[d]) * number
            at = S[4 * part + 1] + i * (VALUE_DIM + SCALE_BYTES)
            codes, number = pointer(at, np.int8), pointer(at + VALUE_DIM, np.float32)[0]
            V = pointer(memory.values + 4 * VALUE_DIM * (row + i), np.float32)
            for d in range(VALUE_DIM):
                V[d] = np.float32(codes[d]) * number
        row += S[4 * part + 3]
    S[0], S[1], S[3] = memory.keys, memory.values, row


@kernel
def update_pages_int8_task(new, slots, pool, geometry, head, *, SOURCE, SCALE_BYTES, load):
    """Write the rounded rows of one head; of rows with one slot the last is kept.

    `HEAD_DIM` of the geometry is that of the new rows.
    """
    G = pointer(geometry, np.int64)
    X, I = pointer(new, SOURCE), pointer(slots, np.int32)
    head_dim, size = G[HEAD_DIM], G[PAGE_SIZE]
    for row in range(G[ROWS]):
        slot = np.int64(I[row])
        page = slot // size
        source = row * G[ROW_STEP] + head * G[HEAD_STEP]
        line = (page * G[KV_HEADS] + head) * size + slot - page * size
        target = pool + line * (head_dim + SCALE_BYTES)
        O = pointer(target, np.int8)
        largest = np.float32(0.0)
        sound = True
        for d in range(head_dim):
            x = abs(load(X[source + d]))
            largest = max(largest, x)
            sound = sound and x == x
        largest = largest if sound else np.float32(np.nan)
        scale = divide(largest, np.float32(127.0))
        usable = largest < np.float32(np.inf) and scale > np.float32(0.0)
        for d in range(head_dim):
            code = np.float32(0.0)
            if usable:
                code = rint(divide(load(X[source + d]), scale))
                code = min(max(code, np.float32(-127.0)), np.float32(127.0))
            O[d] = np.int8(code)
        pointer(target + head_dim, np.float32)[0] = scale
    return 0


def paged_attention_int8(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the task for queries of one type and a kind of pages of si8.

    It is the one for pages of f32 that are a whole block, but for what finds and widens them.
    """
    wide = PageKind(
        dtypes.f32, BLOCK, kind.head_dim, kind.value_dim, kind.windowed, kind.capped, kind.sunk
    )
    sizes: dict[str, object] = {"HEAD_DIM": kind.head_dim, "VALUE_DIM": kind.value_dim}
    segments_of = find_segments_part.specialize(
        PAGE=kind.page_size,
        KEY_BYTES=kind.head_dim + SCALE_BYTES,
        VALUE_BYTES=kind.value_dim + SCALE_BYTES,
    )
    own: dict[str, object] = {
        **sizes,
        "PAGE": kind.page_size,
        "SEGMENTS": kind.segments,
        "segments_of": segments_of,
    }
    rows = dict(attend_rows(query, wide).bindings)
    for part in ("segments_ahead", "first_block_after", "prefetch_rest"):
        del rows[part]
    widen = widen_int8.specialize(**sizes, SCALE_BYTES=SCALE_BYTES)
    rows_kernel = attend_rows_int8_kernel.specialize(**{**rows, **own, "widen": widen})
    panel = attend_panel(query, wide)
    widen = widen_panel_int8.specialize(**sizes, SCALE_BYTES=SCALE_BYTES)
    panel_kernel = panel.template.specialize(
        **{**panel.bindings, **own, "NARROW": True, "widen": widen}
    )
    return paged_attention_task.specialize(rows_kernel=rows_kernel, panel_kernel=panel_kernel)


def update_pages_int8(new: DType) -> SpecializedKernel:
    """Return the task that writes rows of one element type as bytes."""
    return update_pages_int8_task.specialize(
        SOURCE=memory_of(new), SCALE_BYTES=SCALE_BYTES, load=load_of(new)
    )
