"""The kernel of attention for many queries.

A panel of queries goes through the keys block by block: scores, their powers less the largest so
far, and sums of the values times the powers; what was summed before is scaled down when a larger
score comes ("online softmax", Milakov and Gimelshein 2018; Dao et al. 2022). Keys that no query of
the panel sees are not read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.kernels.attention.attention_ir import (
    LARGEST_SCORE_ROWS,
    ROWS,
    hide_from_panel,
    score_tile_1,
    score_tile_4,
    score_tile_largest,
    softmax_panel,
    value_tile_1,
    value_tile_4,
    value_tile_largest,
)
from gptrs_backend_numba.kernels.attention.geometry import (
    CAUSAL,
    DEFAULT_OFFSET,
    GROUP,
    GUARD,
    GUARDS,
    HEAD_DIM,
    IS_OFFSET_GIVEN,
    KB,
    KH,
    KS,
    KV_HEADS,
    MASK,
    MASKED,
    MB,
    MH,
    MS,
    MT,
    OB,
    OFFSET,
    OH,
    OT,
    QB,
    QH,
    QT,
    SCALE,
    VALUE,
    VALUE_DIM,
    VB,
    VH,
    VS,
    S,
    T,
    visible_keys,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, transpose

BLOCK = 48
"""Keys in a block: with a panel of their scores they stay in the L1 cache."""
INF = np.float32(np.inf)
NAN = GUARDS.index("nan")

transpose_4 = transpose(4)


class Panel(NamedTuple):
    """`PANEL` queries, from `first` on, of the `columns` that share a matrix of keys.

    A matrix is the keys or values of one head of one sequence; its queries are those of the `group`
    heads that share them. Query i belongs to the token i // group.
    """

    columns: int
    group: int
    batch: int
    head: int
    first: int


class Memory(NamedTuple):
    """Addresses in the memory of a task."""

    queries: int
    """A row of a panel for each number of a query."""
    sums: int
    """A row of a panel for each number of a value."""
    scores: int
    """A row of a panel for each key of a block."""
    limits: int
    """The number of keys that each query sees, int32."""
    factors: int
    """The factors that rescale the sums."""
    maxima: int
    """The largest score so far of each query."""
    totals: int
    """The sums of powers."""
    keys: int
    """A block of them as f32, if they are not f32; if they are, a block of the bias."""
    values: int
    """A block of them as f32, if they are not f32."""


@kernel
def attention_panel_task(
    query, key, out, geometry, task,
    *, SIZE, NARROW, BIASED, load_queries, widen_block, store_results,
):  # fmt: skip
    """Compute one panel of queries; see `geometry` for the operands."""
    G = pointer(geometry, np.int64)
    group, n_keys, head_dim, value_dim = G[GROUP], G[S], G[HEAD_DIM], G[VALUE_DIM]
    columns = group * G[T]
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    offset, mask = pointer(G[OFFSET], np.int64), pointer(G[MASK], np.uint8)
    panels = (columns + PANEL - 1) // PANEL
    matrix = task // panels
    first = (task - matrix * panels) * PANEL
    batch = matrix // G[KV_HEADS]
    head = matrix - batch * G[KV_HEADS]
    panel = Panel(columns, group, batch, head, first)
    numbers = PANEL * (head_dim + value_dim + BLOCK + 4) + NARROW * BLOCK * (head_dim + value_dim)
    numbers += BIASED * BLOCK * PANEL
    held = np.empty(numbers + 16, np.float32)
    memory = memory_at(held.ctypes.data, head_dim, value_dim)
    most, least = load_queries(query, G, offset, panel, memory, n_keys, head_dim, scale)
    A = pointer(memory.sums, np.float32)
    for i in range(value_dim * PANEL):
        A[i] = 0.0
    keys = key + SIZE * (batch * G[KB] + head * G[KH])
    values = G[VALUE] + SIZE * (batch * G[VB] + head * G[VH])
    for begin in range(0, most, BLOCK):
        count = min(BLOCK, most - begin)
        K, k_step = keys + SIZE * begin * G[KS], SIZE * G[KS]
        V, v_step = values + SIZE * begin * G[VS], SIZE * G[VS]
        if NARROW:
            widen_block(K, k_step, V, v_step, memory, count, head_dim, value_dim)
            K, k_step = memory.keys, 4 * head_dim
            V, v_step = memory.values, 4 * value_dim
        multiply_keys(K, k_step, memory, count, head_dim)
        if begin + count > least:
            hide_from_panel(memory.scores, count, memory.limits, begin)
        if BIASED:
            add_bias(memory, G, panel, begin, count)
        if G[MASKED]:
            hide_masked(memory.scores, G, mask, panel, begin, count)
        softmax_panel(memory.scores, count, memory.maxima, memory.totals, memory.factors)
        multiply_values(V, v_step, memory, count, value_dim)
    if G[GUARD]:
        clear_guarded(memory, value_dim, G[GUARD])
    store_results(out, G, panel, memory, value_dim)
    keep_alive(held)
    return 0


@kernel_part
def memory_at(address, head_dim, value_dim):
    """Return where all is in the memory at an address, from a cache line on."""
    queries = (address + 63) // 64 * 64
    sums = queries + 4 * PANEL * head_dim
    scores = sums + 4 * PANEL * value_dim
    limits = scores + 4 * PANEL * BLOCK
    factors = limits + 4 * PANEL
    maxima, totals = factors + 4 * PANEL, factors + 8 * PANEL
    keys = totals + 4 * PANEL
    values = keys + 4 * BLOCK * head_dim
    return Memory(queries, sums, scores, limits, factors, maxima, totals, keys, values)


@kernel_part
def load_queries(
    query, G, offset, panel, memory, n_keys, head_dim, scale, *, ELEMENT, NARROW, load
):  # fmt: skip
    """Put the scaled queries side by side, and begin their sums.

    Return how many keys some and all of them see.
    """
    columns, group, batch, head, first = panel
    X, Q = pointer(memory.queries, np.float32), pointer(query, ELEMENT)
    L = pointer(memory.limits, np.int32)
    maximum, total = pointer(memory.maxima, np.float32), pointer(memory.totals, np.float32)
    most, least = np.int64(0), n_keys
    # Four queries at a time, if they are evenly apart: consecutive ones, or heads of one.
    even = not NARROW and (group == 1 or group % 4 == 0)
    q_step = G[QT] if group == 1 else G[QH]
    squared = head_dim - head_dim % 4 if even else 0
    for i in range(PANEL):
        L[i] = n_keys
        maximum[i], total[i] = -INF, 0.0
        c = first + i
        if c < columns:
            t = c // group
            seen = visible_keys(G[CAUSAL], G[IS_OFFSET_GIVEN], G[DEFAULT_OFFSET], offset, t, n_keys)
            L[i] = seen
            most, least = max(most, seen), min(least, seen)
            place = batch * G[QB] + (head * group + c - t * group) * G[QH] + t * G[QT]
            done = np.int64(0)
            if i // 4 * 4 + 4 <= columns - first:
                done = squared
                if i % 4 == 0:
                    for d in range(0, squared, 4):
                        transpose_4(query + 4 * (place + d), 4 * q_step,
                                    memory.queries + 4 * (d * PANEL + i), 4 * PANEL)  # fmt: skip
            for d in range(done, head_dim):
                X[d * PANEL + i] = load(Q[place + d])
        else:
            for d in range(head_dim):
                X[d * PANEL + i] = 0.0
    for i in range(head_dim * PANEL):
        X[i] = X[i] * scale
    return most, least


@kernel_part
def widen_block(
    keys, k_step, values, v_step, memory, count, head_dim, value_dim, *, ELEMENT, load
):  # fmt: skip
    """Bring `count` keys and values to f32, once for all queries of the panel."""
    K, V = pointer(memory.keys, np.float32), pointer(memory.values, np.float32)
    for j in range(count):
        R = pointer(keys + j * k_step, ELEMENT)
        for d in range(head_dim):
            K[j * head_dim + d] = load(R[d])
        R = pointer(values + j * v_step, ELEMENT)
        for e in range(value_dim):
            V[j * value_dim + e] = load(R[e])


@kernel_part
def multiply_keys(keys, step, memory, count, head_dim):
    """Compute scores of `count` keys, in tiles from the largest to the smallest."""
    queries, scores = memory.queries, memory.scores
    row = np.int64(0)
    if LARGEST_SCORE_ROWS > 4:
        while row + LARGEST_SCORE_ROWS <= count:
            score_tile_largest(keys + row * step, step, queries, scores + 4 * PANEL * row, head_dim)
            row += LARGEST_SCORE_ROWS
    while row + 4 <= count:
        score_tile_4(keys + row * step, step, queries, scores + 4 * PANEL * row, head_dim)
        row += 4
    while row + 1 <= count:
        score_tile_1(keys + row * step, step, queries, scores + 4 * PANEL * row, head_dim)
        row += 1


@kernel_part
def multiply_values(values, step, memory, count, value_dim):
    """Scale the sums, and add `count` values times the powers of their scores."""
    scores, factors, sums = memory.scores, memory.factors, memory.sums
    row = np.int64(0)
    while row + ROWS <= value_dim:
        value_tile_largest(values + 4 * row, step, scores, factors, sums + 4 * PANEL * row, count)
        row += ROWS
    while row + 4 <= value_dim:
        value_tile_4(values + 4 * row, step, scores, factors, sums + 4 * PANEL * row, count)
        row += 4
    while row + 1 <= value_dim:
        value_tile_1(values + 4 * row, step, scores, factors, sums + 4 * PANEL * row, count)
        row += 1


@kernel_part
def hide_masked(scores, G, mask, panel, begin, count):
    """Set the scores of keys that the mask hides to -inf, in a block of `count` from `begin` on."""
    columns, group, batch, head, first = panel
    W = pointer(scores, np.float32)
    if G[MH] == 0 and G[MT] == 0:
        # Padding hides a key from all queries: its row is looked at once.
        for j in range(count):
            if mask[batch * G[MB] + (begin + j) * G[MS]] == 0:
                for i in range(PANEL):
                    W[j * PANEL + i] = -INF
    else:
        for i in range(min(PANEL, columns - first)):
            t = (first + i) // group
            place = batch * G[MB] + (head * group + first + i - t * group) * G[MH] + t * G[MT]
            for j in range(count):
                if mask[place + (begin + j) * G[MS]] == 0:
                    W[j * PANEL + i] = -INF


@kernel_part
def add_bias(memory, G, panel, begin, count):
    """Add the bias of a block of `count` keys from `begin` on to the scores."""
    columns, group, batch, head, first = panel
    W, B = pointer(memory.scores, np.float32), pointer(G[MASK], np.float32)
    X = pointer(memory.keys, np.float32)
    if G[MH] == 0 and G[MT] == 0:
        # As for padding: a number for all queries.
        for j in range(count):
            number = B[batch * G[MB] + (begin + j) * G[MS]]
            for i in range(PANEL):
                X[j * PANEL + i] = number
    else:
        squared = count - count % 4 if group == 1 and G[MS] == 1 else 0
        for i in range(PANEL):
            # Beyond the last query all is that of the last one: it is not stored.
            c = min(first + i, columns - 1)
            t = c // group
            place = batch * G[MB] + (head * group + c - t * group) * G[MH] + t * G[MT]
            place += begin * G[MS]
            done = np.int64(0)
            if i // 4 * 4 + 4 <= columns - first:
                done = squared
                if i % 4 == 0:
                    for j in range(0, squared, 4):
                        transpose_4(G[MASK] + 4 * (place + j), 4 * G[MT],
                                    memory.keys + 4 * (j * PANEL + i), 4 * PANEL)  # fmt: skip
            for j in range(done, count):
                X[j * PANEL + i] = B[place + j * G[MS]]
    for j in range(count * PANEL):
        W[j] = W[j] + X[j]


@kernel_part
def clear_guarded(memory, value_dim, guard):
    """Set the sums of queries to 0 that give 0: the powers of a blind one have the sum 0."""
    A, total = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    for i in range(PANEL):
        if total[i] == 0.0 or (guard == NAN and total[i] != total[i]):
            total[i] = 1.0
            for e in range(value_dim):
                A[e * PANEL + i] = 0.0


@kernel_part
def store_results(out, G, panel, memory, value_dim, *, ELEMENT, NARROW, store):
    """Divide the sums over values by the sums of powers, and store them as elements."""
    columns, group, batch, head, first = panel
    A, total = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    for i in range(PANEL):
        total[i] = divide(np.float32(1.0), total[i])
    for e in range(value_dim):
        for i in range(PANEL):
            A[e * PANEL + i] = A[e * PANEL + i] * total[i]
    O = pointer(out, ELEMENT)
    even = not NARROW and (group == 1 or group % 4 == 0)
    o_step = G[OT] if group == 1 else G[OH]
    squared = value_dim - value_dim % 4 if even else 0
    for i in range(min(PANEL, columns - first)):
        t = (first + i) // group
        place = batch * G[OB] + t * G[OT] + (head * group + first + i - t * group) * G[OH]
        done = np.int64(0)
        if i // 4 * 4 + 4 <= columns - first:
            done = squared
            if i % 4 == 0:
                for e in range(0, squared, 4):
                    transpose_4(memory.sums + 4 * (e * PANEL + i), 4 * PANEL,
                                out + 4 * (place + e), 4 * o_step)  # fmt: skip
        for e in range(done, value_dim):
            O[place + e] = store(A[e * PANEL + i])


def attention_panels(dtype: DType, biased: bool = False) -> SpecializedKernel:
    """Return the kernel for operands of one type, `biased` ones with a bias for a mask: f32."""
    element, narrow = memory_of(dtype), dtype is not dtypes.f32
    return attention_panel_task.specialize(
        SIZE=dtype.itemsize,
        NARROW=narrow,
        BIASED=biased,
        load_queries=load_queries.specialize(ELEMENT=element, NARROW=narrow, load=load_of(dtype)),
        widen_block=widen_block.specialize(ELEMENT=element, load=load_of(dtype)),
        store_results=store_results.specialize(
            ELEMENT=element, NARROW=narrow, store=store_of(dtype)
        ),
    )
