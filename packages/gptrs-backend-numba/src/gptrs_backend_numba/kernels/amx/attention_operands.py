"""Parts of the kernel of attention with AMX that split queries, keys and values into bf16.

Pairs of keys are consecutive; those of numbers of a key and of a query are eight apart, which takes
fewer instructions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs_backend_numba.codegen.kernel import kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.amx.attention_ir import split_queries, transpose_16
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    AMX_ROWS,
    BLOCK_BYTES,
    MOST_PARTS,
    STEP,
    STEPS,
    TILE_BYTES,
)
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

# Sizes and memory of a task of attention with AMX.


# Blocks of 128 keys are 4 to 6 % slower (GPT-2 124M, Sapphire Rapids).
KEYS = 2 * STEP
"""Keys in a block: with the probabilities and the queries of a panel they stay in the L1 cache."""
RIGHT_BYTES = MOST_PARTS * BLOCK_BYTES
"""Bytes of `STEPS` steps of a panel of queries, or of probabilities of `STEPS` steps of keys."""
PANEL_STATE_BYTES = 12 * PANEL
"""Bytes of a panel: int32 numbers of visible keys, f32 maxima of scores, f32 sums of powers."""


class Panels(NamedTuple):
    """The panels of a task: every `step`-th of the queries of a matrix, from `first` on.

    A matrix is the keys or values of one head of one sequence; its queries are those of the `group`
    heads that share them, `columns` in all. Query i belongs to the token i // group.
    """

    columns: int
    group: int
    batch: int
    head: int
    first: int
    step: int
    count: int


class Sizes(NamedTuple):
    """The sizes of the operands of a matrix."""

    n_keys: int
    head_dim: int
    value_dim: int
    steps: int
    """Steps of `STEP` numbers in a key."""
    blocks: int
    """Blocks of `AMX_ROWS` numbers in a value."""
    padded: int
    """Numbers in a row of staging memory: a key or value in whole steps and blocks."""
    query_bytes: int
    """Bytes of the parts of a panel of queries."""
    sums_bytes: int
    """Bytes of a panel of sums over values."""
    chunk_steps: int
    """Steps of `STEP` keys that are split at a time."""


class Memory(NamedTuple):
    """Addresses in the memory of a task."""

    queries: int
    """The queries of each panel, in parts."""
    probabilities: int
    """The probabilities of a block of keys, in parts."""
    scores: int
    """The scores of two blocks of keys, a row of a panel for each key."""
    sums: int
    """The sums over values of each panel."""
    states: int
    """The state of each panel, see `PANEL_STATE_BYTES`; in front is one of no panel."""
    shifts: int
    """The numbers that are subtracted from the scores of a panel."""
    factors: int
    """The factors that rescale the sums of a panel."""
    scales: int
    """A vector of the scale of all scores, which count powers of two."""
    staging: int
    """A panel of rows of padded operands, f32."""
    transposed: int
    """A buffer of the same size for transposes."""
    keys: int
    """In parts, of a chunk."""
    values: int
    """In parts, of a chunk."""
    bounds: int
    """Two int64 for each panel: the numbers of keys that some and that all of its queries see."""


@kernel_part
def sizes_of(n_keys, head_dim, value_dim, chunk):
    """Return the sizes for chunks of `chunk` keys."""
    steps, blocks = (head_dim + STEP - 1) // STEP, (value_dim + AMX_ROWS - 1) // AMX_ROWS
    padded = max(steps * STEP, blocks * AMX_ROWS)
    query_bytes = (steps + STEPS - 1) // STEPS * RIGHT_BYTES
    sums_bytes = 4 * PANEL * AMX_ROWS * blocks
    return Sizes(
        n_keys, head_dim, value_dim, steps, blocks, padded, query_bytes, sums_bytes, chunk // STEP
    )


@kernel_part
def memory_bytes(sizes, panels, *, LEFT_BYTES):
    """Return how much memory `memory_at` needs."""
    return (
        4096
        + panels * sizes.query_bytes
        + RIGHT_BYTES
        + 2 * TILE_BYTES
        + 8 * PANEL * KEYS
        + panels * sizes.sums_bytes
        + 12 * PANEL * (panels + 1)
        + 12 * PANEL
        + 8 * PANEL * sizes.padded
        + sizes.chunk_steps * (sizes.steps + sizes.blocks) * LEFT_BYTES
        + 16 * panels
    )


@kernel_part
def memory_at(address, sizes, panels, *, LEFT_BYTES):
    """Return where everything is in the memory at an address, for `panels` panels.

    It begins on a page, so that what is used together falls on known sets of the L1 cache.
    """
    queries = (address + 4095) // 4096 * 4096
    # Queries that fill half of their block leave the other half of the cache's sets to the
    # probabilities.
    probabilities = (
        queries + panels * sizes.query_bytes + (2 * TILE_BYTES if sizes.steps <= 2 else 0)
    )
    scores = queries + panels * sizes.query_bytes + RIGHT_BYTES + 2 * TILE_BYTES
    sums = scores + 8 * PANEL * KEYS
    states = sums + panels * sizes.sums_bytes + PANEL_STATE_BYTES
    shifts = states + PANEL_STATE_BYTES * panels
    factors, scales = shifts + 4 * PANEL, shifts + 8 * PANEL
    staging = scales + 4 * PANEL
    transposed = staging + 4 * PANEL * sizes.padded
    keys = transposed + 4 * PANEL * sizes.padded
    values = keys + sizes.chunk_steps * sizes.steps * LEFT_BYTES
    bounds = values + sizes.chunk_steps * sizes.blocks * LEFT_BYTES
    return Memory(
        queries, probabilities, scores, sums, states, shifts, factors, scales, staging, transposed,
        keys, values, bounds,
    )  # fmt: skip


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
        start = panels.batch * G[QB] + (panels.head * panels.group + g) * G[QH] + t * G[QT]
        row, row_step = (
            (query + 4 * start, 4 * q_step) if whole else (memory.staging, 4 * sizes.padded)
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
                target = memory.queries + p * sizes.query_bytes + step // STEPS * RIGHT_BYTES
                target += half * BLOCK_BYTES // 2 + step % STEPS * TILE_BYTES
                for d in range(2):
                    source = row + 128 * step + 64 * d
                    split_queries(source, row_step, memory.scales, target + 512 * d)
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
                start = panels.batch * G[QB] + (panels.head * panels.group + g) * G[QH] + t * G[QT]
                for d in range(sizes.head_dim):
                    X[i * sizes.padded + d] = load(Q[start + d])
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
        target = memory.keys + step * sizes.steps * LEFT_BYTES
        target += j // 16 * TILE_BYTES + j % 16 * 64
        split_keys(row, target, LEFT_BYTES, sizes.steps)


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
        target = memory.values + (e // AMX_ROWS * sizes.chunk_steps + step) * LEFT_BYTES
        split_values(memory.transposed, target + e % AMX_ROWS // 16 * TILE_BYTES, 64, 16)
