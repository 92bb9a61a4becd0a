"""The part of the kernel of attention with AMX that goes through keys, block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.amx.attention_ir import scale_panel, softmax_pairs, update_maxima
from gptrs_backend_numba.kernels.amx.attention_layout_ir import prefetch_rows_to_l2
from gptrs_backend_numba.kernels.amx.attention_memory import KEYS, PANEL_STATE_BYTES, RIGHT_BYTES
from gptrs_backend_numba.kernels.amx.bf16x3_ir import STEP, STEPS
from gptrs_backend_numba.kernels.amx.gemm_ir import AMX_ROWS
from gptrs_backend_numba.kernels.attention.geometry import (
    GROUP,
    KB,
    KH,
    KS,
    KV_HEADS,
    MASKED,
    MB,
    MH,
    MS,
    MT,
    QB,
    QH,
    QT,
    TASKS,
    TASKS_A_MATRIX,
    THREADS,
    VALUE,
    VB,
    VH,
    VS,
    T,
)
from gptrs_backend_numba.kernels.attention.softmax_ir import hide_from_panel
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

INF = np.float32(np.inf)


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
    follower = min(task + G[THREADS], G[TASKS] - 1) // G[TASKS_A_MATRIX]
    first = sizes.n_keys if begin > 0 or follower == matrix else 0
    batch = follower // G[KV_HEADS]
    head = follower - batch * G[KV_HEADS]
    keys = key + SIZE * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + SIZE * (batch * G[VB] + head * G[VH])
    queries = query + SIZE * (batch * G[QB] + head * G[GROUP] * G[QH])
    return Upcoming(keys, values, queries, (sizes.n_keys + blocks - 1) // blocks, first)


@kernel_part
def hide_masked(scores, G, M, panels, p, at, shown):
    """Set scores that the mask hides to -inf, in `shown` rows, those of the keys from `at` on."""
    W = pointer(scores, np.float32)
    first = (panels.first + p * panels.step) * PANEL
    if G[MASKED] and G[MH] == 0 and G[MT] == 0:  # the same keys for all queries
        place = panels.batch * G[MB] + at * G[MS]
        for j in range(shown):
            if M[place + j * G[MS]] == 0:
                for i in range(PANEL):
                    W[j * PANEL + i] = -INF
    elif G[MASKED]:
        for i in range(min(PANEL, panels.columns - first)):
            t = (first + i) // panels.group
            place = panels.batch * G[MB]
            place += (panels.head * panels.group + first + i - t * panels.group) * G[MH]
            place += t * G[MT] + at * G[MS]
            for j in range(shown):
                if M[place + j * G[MS]] == 0:
                    W[j * PANEL + i] = -INF


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
        place = new + 4 * PANEL * j
        source, target = old + 4 * PANEL * j, memory.probabilities + 32 * j
        if j < rows:
            score_and_softmax(keys, right, min(sizes.steps, STEPS), place, source, target,
                              memory.shifts, totals)  # fmt: skip
            softmax_pairs(source + 8 * PANEL * PAIRS_MEANWHILE, target + 64 * PAIRS_MEANWHILE,
                          STEP // 2 - PAIRS_MEANWHILE, memory.shifts, totals)  # fmt: skip
        else:
            score(keys, right, min(sizes.steps, STEPS), place, source, target, memory.shifts,
                  totals)  # fmt: skip
        for step in range(STEPS, sizes.steps, STEPS):
            multiply(keys + step * LEFT_BYTES, right + step // STEPS * RIGHT_BYTES, place,
                     min(STEPS, sizes.steps - step), place, 4 * PANEL)  # fmt: skip
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
            hide_masked(scores, G, mask, panels, p, at, min(rows, n_keys - at))
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
        place = memory.sums + p * sizes.sums_bytes
        if is_raised:  # seldom: see `_SLACK` in `attention_ir`
            scale_panel(place, sizes.blocks * AMX_ROWS, memory.factors)
        for block in range(sizes.blocks if p >= 0 else 0):
            left = memory.values + (block * sizes.chunk_steps + (at - begin) // STEP) * LEFT_BYTES
            multiply(left, memory.probabilities, place, rows // STEP, place, 4 * PANEL)
            place += 4 * PANEL * AMX_ROWS
        for g in range(panels.group):
            rows_of_head = upcoming.queries + SIZE * (g * G[QH] + prefetched * G[QT])
            prefetch_rows_to_l2(rows_of_head, SIZE * G[QT], min(count, G[T] - prefetched),
                                SIZE * sizes.head_dim)  # fmt: skip
        prefetched += count
        scores, next_scores = next_scores, scores
        p, at, rows = n, to, more
