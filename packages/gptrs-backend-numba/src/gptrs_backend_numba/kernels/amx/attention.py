"""The kernel of attention for many queries with AMX.

A task takes panels of queries of one matrix, those of the heads that share keys side by side, and
goes through the keys chunk by chunk, whose parts stay in the L2 cache; see
`gptrs_backend_numba.kernels.attention.many_queries` for the sums. While scores of one block of keys
are multiplied, those of the block before, perhaps of another panel, become probabilities.

Panels whose sums are not finite are computed again without AMX: parts make NaN of infinities, and
powers of up to 2^8 overflow earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    kernel,
    kernel_part,
    use_wide_vectors,
)
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.tasks import call_task
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.amx import attention_operands
from gptrs_backend_numba.kernels.amx.attention_ir import (
    are_finite,
    divide_and_transpose_16,
    prefetch_rows_to_l2,
    scale_panel,
    score_and_softmax,
    softmax_pairs,
    split_rows,
    update_maxima,
)
from gptrs_backend_numba.kernels.amx.attention_operands import (
    KEYS,
    PANEL_STATE_BYTES,
    RIGHT_BYTES,
    Panels,
    sizes_of,
)
from gptrs_backend_numba.kernels.amx.gemm import parts_of
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    AMX_ROWS,
    MOST_PARTS,
    PART_BYTES,
    STEP,
    STEPS,
    configure_amx,
    multiply_block,
    release_amx,
)
from gptrs_backend_numba.kernels.attention.attention_ir import hide_from_panel
from gptrs_backend_numba.kernels.attention.geometry import (
    CHUNK,
    GROUP,
    GUARD,
    HEAD_DIM,
    KB,
    KH,
    KS,
    KV_HEADS,
    MASK,
    MASKED,
    MB,
    OB,
    OFFSET,
    OH,
    OT,
    QB,
    QH,
    QT,
    SCALE,
    TASKS,
    TASKS_A_MATRIX,
    THREADS,
    VALUE,
    VALUE_DIM,
    VB,
    VECTOR_TASK,
    VH,
    VS,
    S,
    T,
)
from gptrs_backend_numba.kernels.attention.many_queries import hide_masked
from gptrs_backend_numba.kernels.attention.panels import Columns
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

# The part of the kernel of attention with AMX that goes through keys, block by block.


@kernel_part
def count_blocks(bounds, panels):
    """Return the number of blocks that all panels go through, and one more."""
    blocks = np.int64(1)
    for p in range(panels):
        blocks += (bounds[2 * p] + KEYS - 1) // KEYS
    return blocks


@kernel_part
def block_after(p, at, begin, end, bounds, panels):
    """Return the block that follows the one from key `at` on, for panel p, as (panel, key, count).

    The panel is `panels` and the count 0 after the last block of the chunk from `begin` to `end`.
    """
    n, to, more = p, at + KEYS, np.int64(0)
    if p < 0 or to >= min(end, bounds[2 * p]):
        n, to = p + 1, begin
        while n < panels and bounds[2 * n] <= begin:
            n += 1
    if n < panels:
        more = min(KEYS, (min(end, bounds[2 * n]) - to + STEP - 1) // STEP * STEP)
    return n, to, more


class Upcoming(NamedTuple):
    """The addresses of the rows of a matrix that the thread will likely read next."""

    keys: int
    values: int
    queries: int
    share: int
    """Rows to prefetch with each block."""
    first: int
    """The first of them: all, if there are none to prefetch."""


@kernel_part
def upcoming_matrix(query, key, G, sizes, task, matrix, begin, blocks, *, SIZE):
    """Return what to prefetch to the L2 cache while the chunk from `begin` on is multiplied.

    This is another matrix, or nothing; it is prefetched during the first chunk only.
    """
    # Tasks are taken in order: after this one, the thread will take about the next but `THREADS`.
    # To prefetch it makes a whole model 8 % faster; closer to its use nothing is gained.
    follower = min(task + G[THREADS], G[TASKS] - 1) // G[TASKS_A_MATRIX]
    first = sizes.n_keys if begin > 0 or follower == matrix else 0
    batch = follower // G[KV_HEADS]
    head = follower - batch * G[KV_HEADS]
    keys = key + SIZE * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + SIZE * (batch * G[VB] + head * G[VH])
    queries = query + SIZE * (batch * G[QB] + head * G[GROUP] * G[QH])
    return Upcoming(keys, values, queries, (sizes.n_keys + blocks - 1) // blocks, first)


@kernel_part
def score_next(
    sizes, memory, begin, to, more, right, old, new, rows, totals,
    *, LEFT_BYTES, PAIRS_MEANWHILE, score, score_and_softmax, multiply,
):  # fmt: skip
    """Multiply `more` keys of the chunk, from `to` on, with the panel of queries at `right`.

    Their scores are stored at `new`. Meanwhile the `rows` scores at `old`, of the block before,
    become probabilities.
    """
    for j in range(0, more, STEP):
        keys = memory.keys + (to + j - begin) // STEP * sizes.steps * LEFT_BYTES
        scores = new + 4 * PANEL * j
        source, target = old + 4 * PANEL * j, memory.probabilities + 32 * j
        if j < rows:
            score_and_softmax(keys, right, min(sizes.steps, STEPS), scores, source, target,
                              memory.shifts, totals)  # fmt: skip
            softmax_pairs(source + 8 * PANEL * PAIRS_MEANWHILE, target + 64 * PAIRS_MEANWHILE,
                          STEP // 2 - PAIRS_MEANWHILE, memory.shifts, totals)  # fmt: skip
        else:
            score(keys, right, min(sizes.steps, STEPS), scores, source, target, memory.shifts,
                  totals)  # fmt: skip
        for step in range(STEPS, sizes.steps, STEPS):
            multiply(keys + step * LEFT_BYTES, right + step // STEPS * RIGHT_BYTES, scores,
                     min(STEPS, sizes.steps - step), scores, 4 * PANEL)  # fmt: skip
    if rows > more:
        softmax_pairs(old + 4 * PANEL * more, memory.probabilities + 32 * more, (rows - more) // 2,
                      memory.shifts, totals)  # fmt: skip


@kernel_part
def multiply_chunk(
    G, mask, panels, sizes, memory, bounds, upcoming, begin, end,
    *, SIZE, LEFT_BYTES, score_next, multiply,
):  # fmt: skip
    """Go through the blocks of keys of all panels, from `begin` to `end`.

    While the scores of one block are multiplied, those of the block before, perhaps of another
    panel, become probabilities: vector instructions fill the time that AMX takes.
    """
    n_keys = sizes.n_keys
    scores, next_scores = memory.scores, memory.scores + 4 * PANEL * KEYS
    prefetched = upcoming.first
    p, at, rows = np.int64(-1), begin, np.int64(0)
    while p < panels.count:
        n, to, more = block_after(p, at, begin, end, bounds, panels.count)
        state, is_raised = memory.states + PANEL_STATE_BYTES * p, np.int64(0)
        if p >= 0:
            if at + rows > bounds[2 * p + 1]:
                hide_from_panel(scores, rows, state, at)
            if G[MASKED]:
                first = (panels.first + p * panels.step) * PANEL
                columns = Columns(panels.group, panels.head, first,
                                  min(PANEL, panels.columns - first))  # fmt: skip
                hide_masked(G, columns, mask, scores, at, min(rows, n_keys - at))
            is_raised = update_maxima(scores, rows // 2, state + 4 * PANEL, state + 8 * PANEL,
                                      memory.shifts, memory.factors)  # fmt: skip
        # Little at a time, spread over all blocks: a core waits for few cache lines at once.
        count = min(upcoming.share, n_keys - prefetched)
        prefetch_rows_to_l2(upcoming.keys + SIZE * prefetched * G[KS], SIZE * G[KS], count,
                            SIZE * sizes.head_dim)  # fmt: skip
        right = memory.queries + n * sizes.query_bytes
        score_next(
            sizes, memory, begin, to, more, right, scores, next_scores, rows, state + 8 * PANEL
        )
        prefetch_rows_to_l2(upcoming.values + SIZE * prefetched * G[VS], SIZE * G[VS], count,
                            SIZE * sizes.value_dim)  # fmt: skip
        sums = memory.sums + p * sizes.sums_bytes
        if is_raised:  # seldom: see `_SLACK` in `attention_ir`
            scale_panel(sums, sizes.blocks * AMX_ROWS, memory.factors)
        for block in range(sizes.blocks if p >= 0 else 0):
            left = memory.values + (block * sizes.chunk_steps + (at - begin) // STEP) * LEFT_BYTES
            multiply(left, memory.probabilities, sums, rows // STEP, sums, 4 * PANEL)
            sums += 4 * PANEL * AMX_ROWS
        for g in range(panels.group):
            rows_of_head = upcoming.queries + SIZE * (g * G[QH] + prefetched * G[QT])
            prefetch_rows_to_l2(rows_of_head, SIZE * G[QT], min(count, G[T] - prefetched),
                                SIZE * sizes.head_dim)  # fmt: skip
        prefetched += count
        scores, next_scores = next_scores, scores
        p, at, rows = n, to, more


_LOG2_E = math.log2(math.e)


@kernel
def amx_attention_task(
    query, key, out, geometry, task,
    *, SIZE, memory_bytes, memory_at, load_queries, split_chunk, upcoming_matrix, multiply_chunk,
    store_results,
):  # fmt: skip
    """Compute some panels of queries of one matrix; see `attention.geometry` for the operands."""
    G = pointer(geometry, np.int64)
    sizes = sizes_of(G[S], G[HEAD_DIM], G[VALUE_DIM], G[CHUNK])
    columns = G[GROUP] * G[T]
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    offset = pointer(G[OFFSET], np.int64)
    use_wide_vectors()
    matrix, step, chunk = task // G[TASKS_A_MATRIX], G[TASKS_A_MATRIX], G[CHUNK]
    first = task - matrix * step
    count = ((columns + PANEL - 1) // PANEL - first + step - 1) // step
    batch = matrix // G[KV_HEADS]
    head = matrix - batch * G[KV_HEADS]
    panels = Panels(columns, G[GROUP], batch, head, first, step, count)
    keys = key + SIZE * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + SIZE * (batch * G[VB] + head * G[VH])
    mask = G[MASK] + batch * G[MB]
    nbytes = memory_bytes(sizes, count)
    held = np.empty(nbytes, np.uint8)
    memory = memory_at(held.ctypes.data, sizes, count)
    set_scale(memory.scales, scale)
    bounds = pointer(memory.bounds, np.int64)
    most = load_queries(query, G, offset, panels, sizes, memory, bounds)
    blocks = count_blocks(bounds, count)
    configure_amx()
    for begin in range(0, most, chunk):
        end = min(begin + chunk, most)
        # Before all of it is multiplied: keys split when they are first needed take 8 % longer.
        split_chunk(keys, values, G, sizes, memory, begin, end)
        upcoming = upcoming_matrix(query, key, G, sizes, task, matrix, begin, blocks)
        multiply_chunk(G, mask, panels, sizes, memory, bounds, upcoming, begin, end)
    release_amx()
    for p in range(count):
        sums = memory.sums + p * sizes.sums_bytes
        if are_finite(sums, sizes.sums_bytes // 4):
            store_results(out, G, panels, sizes, memory, p, sums)
        else:
            panel = matrix * ((columns + PANEL - 1) // PANEL) + first + p * step
            call_task(G[VECTOR_TASK], query, key, out, geometry, panel)
    keep_alive(held)
    return 0


@kernel_part
def set_scale(scales, scale):
    """Make a vector of the scale: scores count powers of two, which are cheaper than those of e."""
    X = pointer(scales, np.float32)
    for i in range(WIDTH):
        X[i] = np.float32(np.float64(scale) * _LOG2_E)


@kernel_part
def store_results(out, G, panels, sizes, memory, p, sums, *, ELEMENT, DIRECT, store):
    """Divide the sums of a panel over values by the sums of powers, and store them as elements.

    With `DIRECT`, they are f32, and go straight to the result if queries are evenly apart.
    """
    group, padded, value_dim = panels.group, sizes.padded, sizes.value_dim
    X, O = pointer(memory.staging, np.float32), pointer(out, ELEMENT)
    even = DIRECT and (group == 1 or group % 16 == 0)
    o_step = G[OT] if group == 1 else G[OH]
    first = (panels.first + p * panels.step) * PANEL
    totals = memory.states + PANEL_STATE_BYTES * p + 8 * PANEL
    total = pointer(totals, np.float32)
    for i in range(PANEL if G[GUARD] else 0):
        if total[i] == 0.0:  # it sees no key
            total[i] = 1.0
    whole = even and first + PANEL <= panels.columns and value_dim % 16 == 0
    for half in range(2):
        row, row_step = memory.staging + 64 * padded * half, 4 * padded
        if whole:
            t = (first + 16 * half) // group
            line = panels.head * group + first + 16 * half - t * group
            row = out + 4 * (panels.batch * G[OB] + t * G[OT] + line * G[OH])
            row_step = 4 * o_step
        for e in range(0, value_dim, 16):
            source = sums + 4 * PANEL * e + 64 * half
            divide_and_transpose_16(source, 4 * PANEL, row + 4 * e, row_step, totals + 64 * half)
    for i in range(0 if whole else min(PANEL, panels.columns - first)):
        t = (first + i) // group
        start = panels.batch * G[OB] + t * G[OT]
        start += (panels.head * group + first + i - t * group) * G[OH]
        for e in range(value_dim):
            O[start + e] = store(X[i * padded + e])


def amx_attention(dtype: DType, head_dim: int) -> SpecializedKernel:
    """Return the kernel for operands of one type and queries of `head_dim` numbers."""
    parts, steps = parts_of(dtype), min(STEPS, -(-head_dim // STEP))
    direct, size, element = dtype is dtypes.f32, dtype.itemsize, memory_of(dtype)
    left_bytes = PART_BYTES * parts
    operands = {"ELEMENT": element, "DIRECT": direct, "load": load_of(dtype)}
    return amx_attention_task.specialize(
        SIZE=size,
        memory_bytes=attention_operands.memory_bytes.specialize(LEFT_BYTES=left_bytes),
        memory_at=attention_operands.memory_at.specialize(LEFT_BYTES=left_bytes),
        load_queries=attention_operands.load_queries.specialize(
            DIRECT=direct,
            stage_panel=attention_operands.stage_panel.specialize(
                ELEMENT=element, load=load_of(dtype)
            ),
        ),
        split_chunk=attention_operands.split_chunk.specialize(
            split_step_of_keys=attention_operands.split_step_of_keys.specialize(
                **operands, SIZE=size, LEFT_BYTES=left_bytes, split_keys=split_rows(parts, 8)
            ),
            split_step_of_values=attention_operands.split_step_of_values.specialize(
                **operands, SIZE=size, LEFT_BYTES=left_bytes, split_values=split_rows(parts, 16)
            ),
        ),
        upcoming_matrix=upcoming_matrix.specialize(SIZE=size),
        multiply_chunk=_multiply_chunk(size, parts, steps),
        store_results=store_results.specialize(
            ELEMENT=element, DIRECT=direct, store=store_of(dtype)
        ),
    )


def _multiply_chunk(size: int, parts: int, steps: int) -> SpecializedKernel:
    pairs_a_step = STEP // 2 // steps
    multiply, left_bytes = multiply_block(parts, MOST_PARTS), PART_BYTES * parts
    return multiply_chunk.specialize(
        SIZE=size,
        LEFT_BYTES=left_bytes,
        score_next=score_next.specialize(
            LEFT_BYTES=left_bytes,
            PAIRS_MEANWHILE=steps * pairs_a_step,
            score=score_and_softmax(parts, 0),
            score_and_softmax=score_and_softmax(parts, pairs_a_step),
            multiply=multiply,
        ),
        multiply=multiply,
    )
