"""Parts of the kernel of attention with AMX that split queries, keys and values into bf16.

Pairs of keys are consecutive; those of numbers of a key and of a query are eight apart, which takes
fewer instructions.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.amx.attention_layout_ir import split_queries, transpose_16
from gptrs_backend_numba.kernels.amx.attention_memory import PANEL_STATE_BYTES, RIGHT_BYTES
from gptrs_backend_numba.kernels.amx.bf16x3_ir import BLOCK_BYTES, STEP, STEPS, TILE_BYTES
from gptrs_backend_numba.kernels.amx.gemm_ir import AMX_ROWS
from gptrs_backend_numba.kernels.attention.geometry import (
    CAUSAL,
    DEFAULT_OFFSET,
    IS_OFFSET_GIVEN,
    KS,
    QB,
    QH,
    QT,
    VS,
    visible_keys,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

INF = np.float32(np.inf)


@kernel_part
def load_queries(query, G, offset, panels, sizes, memory, bounds, *, DIRECT, stage_panel):
    """Split all panels of queries, and begin their sums; return the most keys that any query sees.

    `bounds` becomes how many keys some and all queries of each panel see. With `DIRECT`, queries
    are f32, and a whole panel of them is read in place if they are evenly apart: consecutive ones,
    or heads of one.
    """
    even = DIRECT and (panels.group == 1 or panels.group % 16 == 0)
    q_step = G[QT] if panels.group == 1 else G[QH]
    most_of_all = np.int64(0)
    for p in range(panels.count):
        first = (panels.first + p * panels.step) * PANEL
        whole = even and first + PANEL <= panels.columns and sizes.head_dim % STEP == 0
        t, g = first // panels.group, first % panels.group
        place = panels.batch * G[QB] + (panels.head * panels.group + g) * G[QH] + t * G[QT]
        row, row_step = (
            (query + 4 * place, 4 * q_step) if whole else (memory.staging, 4 * sizes.padded)
        )
        state = memory.states + PANEL_STATE_BYTES * p
        most, least = stage_panel(
            query, G, offset, panels, sizes, memory.staging, state, first, whole
        )
        bounds[2 * p], bounds[2 * p + 1] = most, least
        most_of_all = max(most_of_all, most)
        for half in range(2):
            if whole and half == 1 and panels.group > 1:
                c = first + 16
                row = query + 4 * (panels.batch * G[QB]
                                   + (panels.head * panels.group + c % panels.group) * G[QH]
                                   + c // panels.group * G[QT])  # fmt: skip
            elif half == 1:
                row += 16 * row_step
            for step in range(sizes.steps):
                place = memory.queries + p * sizes.query_bytes + step // STEPS * RIGHT_BYTES
                place += half * BLOCK_BYTES // 2 + step % STEPS * TILE_BYTES
                for d in range(2):
                    source = row + 128 * step + 64 * d
                    split_queries(source, row_step, memory.scales, place + 512 * d)
        A = pointer(memory.sums + p * sizes.sums_bytes, np.float32)
        for i in range(sizes.sums_bytes // 4):
            A[i] = 0.0
    return most_of_all


@kernel_part
def stage_panel(
    query, G, offset, panels, sizes, staging, state, first, whole, *, ELEMENT, load
):  # fmt: skip
    """Begin the state of a panel of queries, and copy them to padded rows unless it is `whole`.

    Return how many keys some and all of them see. `first` is the first query.
    """
    L, F = pointer(state, np.int32), pointer(state, np.float32)
    X, Q = pointer(staging, np.float32), pointer(query, ELEMENT)
    n_keys = sizes.n_keys
    most, least = np.int64(0), n_keys
    t, g = first // panels.group, first % panels.group
    if not whole:
        for i in range(PANEL * sizes.padded):
            X[i] = 0.0
    for i in range(PANEL):
        L[i] = n_keys
        F[PANEL + i], F[2 * PANEL + i] = -INF, 0.0
        if first + i < panels.columns:
            seen = visible_keys(G[CAUSAL], G[IS_OFFSET_GIVEN], G[DEFAULT_OFFSET], offset, t, n_keys)
            L[i] = seen
            most, least = max(most, seen), min(least, seen)
            if not whole:
                place = panels.batch * G[QB] + (panels.head * panels.group + g) * G[QH] + t * G[QT]
                for d in range(sizes.head_dim):
                    X[i * sizes.padded + d] = load(Q[place + d])
        g += 1
        if g == panels.group:
            t, g = t + 1, 0
    return most, least


@kernel_part
def split_chunk(
    keys, values, G, sizes, memory, begin, end, *, split_step_of_keys, split_step_of_values
):
    """Split the keys and values from `begin` to `end` into parts."""
    X = pointer(memory.staging, np.float32)
    for first in range(begin, end, STEP):
        step, count = (first - begin) // STEP, min(STEP, end - first)
        for i in range(sizes.padded):
            X[i] = 0.0
        split_step_of_keys(keys, G, sizes, memory, first, step, count)
        split_step_of_values(values, G, sizes, memory, first, step, count)


@kernel_part
def split_step_of_keys(
    keys, G, sizes, memory, first, step, count,
    *, ELEMENT, SIZE, DIRECT, LEFT_BYTES, load, split_keys,
):  # fmt: skip
    """Split `STEP` keys from `first` on, `count` of them, with zeros for the rest."""
    X = pointer(memory.staging, np.float32)
    whole = DIRECT and count == STEP
    for j in range(STEP):
        row = keys + SIZE * (first + j) * G[KS]
        if not whole or sizes.head_dim % STEP != 0:
            K = pointer(row, ELEMENT)
            for d in range(sizes.head_dim):
                X[d] = load(K[d]) if j < count else np.float32(0.0)
            row = memory.staging
        place = memory.keys + step * sizes.steps * LEFT_BYTES
        place += j // 16 * TILE_BYTES + j % 16 * 64
        split_keys(row, place, LEFT_BYTES, sizes.steps)


@kernel_part
def split_step_of_values(
    values, G, sizes, memory, first, step, count,
    *, ELEMENT, SIZE, DIRECT, LEFT_BYTES, load, split_values,
):  # fmt: skip
    """Split 16 numbers of each value at a time as `split_step_of_keys` does, and transpose them."""
    X = pointer(memory.staging, np.float32)
    whole = DIRECT and count == STEP
    for e in range(0, sizes.blocks * AMX_ROWS, 16):
        for half in range(2):
            row = values + SIZE * ((first + half) * G[VS] + e)
            row_step = 8 * G[VS]
            if not whole or e + 16 > sizes.value_dim:
                for i in range(16):
                    V = pointer(row + 2 * SIZE * i * G[VS], ELEMENT)
                    for d in range(16):
                        X[16 * i + d] = 0.0
                    if 2 * i + half < count:
                        for d in range(min(16, sizes.value_dim - e)):
                            X[16 * i + d] = load(V[d])
                row, row_step = memory.staging, 64
            transpose_16(row, row_step, memory.transposed + 64 * half, 128)
        place = memory.values + (e // AMX_ROWS * sizes.chunk_steps + step) * LEFT_BYTES
        split_values(memory.transposed, place + e % AMX_ROWS // 16 * TILE_BYTES, 64, 16)
