"""The kernel of attention for many queries on contiguous keys; see `panels`."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.kernels.attention.attention_ir import (
    hide_from_panel,
    score_tile_1,
    score_tile_4,
    score_tile_largest,
    softmax_panel,
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
from gptrs_backend_numba.kernels.attention.panels import (
    INF,
    Columns,
    Source,
    attend_blocks,
    clear,
    column_at,
    memory_at,
    memory_size,
    query_loading,
    result_storing,
    score_panel_keys,
    transpose_4,
    widening,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

BLOCK = 48
"""Keys in a block: with a panel of their scores they stay in the L1 cache."""
NAN = GUARDS.index("nan")


@kernel
def attention_panel_task(
    query, key, out, geometry, task,
    *, SIZE, MASK_SIZE, NARROW, BIASED, load_queries, attend_blocks, store_results,
):  # fmt: skip
    """Compute one panel of queries; see `geometry` for the operands."""
    G = pointer(geometry, np.int64)
    group, n_keys, head_dim, value_dim = G[GROUP], G[S], G[HEAD_DIM], G[VALUE_DIM]
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    panels = (group * G[T] + PANEL - 1) // PANEL
    matrix = task // panels
    first = (task - matrix * panels) * PANEL
    batch = matrix // G[KV_HEADS]
    head = matrix - batch * G[KV_HEADS]
    columns = Columns(group, head, first, min(group * G[T] - first, np.int64(PANEL)))
    source = Source(
        key + SIZE * (batch * G[KB] + head * G[KH]),
        G[VALUE] + SIZE * (batch * G[VB] + head * G[VH]),
        SIZE * G[KS],
        SIZE * G[VS],
        G[MASK] + MASK_SIZE * batch * G[MB],
        np.int64(0),
    )
    numbers = memory_size(head_dim, value_dim, BLOCK, 1, 1, NARROW)
    held = np.empty(numbers + BIASED * BLOCK * PANEL, np.float32)
    memory = memory_at(held.ctypes.data, head_dim, value_dim, BLOCK, 1, 1)
    most = limit_columns(G, columns, memory, n_keys)
    load_queries(query, columns, batch * G[QB], G[QT], G[QH], memory, head_dim, scale)
    clear(memory, value_dim, 1)
    attend_blocks(geometry, columns, source, memory, np.int64(0), most, head_dim, value_dim)
    divide_sums(memory, value_dim, G[GUARD])
    store_results(out, columns, batch * G[OB], G[OT], G[OH], memory, value_dim)
    keep_alive(held)
    return 0


@kernel_part
def limit_columns(G, columns, memory, n_keys):
    """Write down how many keys each column sees; return how many the last one does: the most."""
    L, offset = pointer(memory.limits, np.int32), pointer(G[OFFSET], np.int64)
    for i in range(PANEL):
        L[i] = n_keys
    for i in range(columns.count if G[CAUSAL] else 0):
        token, _head = column_at(columns, i)
        L[i] = visible_keys(G[CAUSAL], G[IS_OFFSET_GIVEN], G[DEFAULT_OFFSET], offset, token, n_keys)
    return np.int64(L[columns.count - 1])


@kernel_part
def find_segment(G, source, block, low, high, segments):
    """Write down where the keys and values from `low` to `high` of a block lie: in one part."""
    X = pointer(segments, np.int64)
    X[0] = source.keys + (block + low) * source.key_step
    X[1] = source.values + (block + low) * source.value_step
    X[2], X[3] = low, high - low
    return np.int64(1)


@kernel_part
def weigh_scores(geometry, columns, source, memory, block, low, high, *, BIASED):
    """Hide and bias the scores of a block, all of it from its first key on; exponentiate them."""
    G = pointer(geometry, np.int64)
    least = pointer(memory.limits, np.int32)[0]  # the first column sees the fewest keys
    if block + high > least:
        hide_from_panel(memory.scores, high, memory.limits, block)
    if BIASED:
        add_bias(G, columns, source.table, memory, block, high)
    if G[MASKED]:
        hide_masked(G, columns, source.table, memory.scores, block, high)
    # After all that hides: the largest score must be one that is seen.
    softmax_panel(memory.scores, high, memory.maxima, memory.totals, memory.factors)


@kernel_part
def hide_masked(G, columns, mask, scores, begin, count):
    """Set the scores of keys that the mask hides to -inf, in a block of `count` from `begin` on."""
    M, W = pointer(mask, np.uint8), pointer(scores, np.float32)
    if G[MH] == 0 and G[MT] == 0:
        # Padding hides a key from all queries: its row is looked at once.
        for j in range(count):
            if M[(begin + j) * G[MS]] == 0:
                for i in range(PANEL):
                    W[j * PANEL + i] = -INF
    else:
        for i in range(columns.count):
            token, head = column_at(columns, i)
            start = head * G[MH] + token * G[MT]
            for j in range(count):
                if M[start + (begin + j) * G[MS]] == 0:
                    W[j * PANEL + i] = -INF


@kernel_part
def add_bias(G, columns, bias, memory, begin, count):
    """Add the bias of a block of `count` keys from `begin` on to the scores."""
    W, B = pointer(memory.scores, np.float32), pointer(bias, np.float32)
    X = pointer(memory.keys, np.float32)
    if G[MH] == 0 and G[MT] == 0:
        # As for padding: a number for all queries.
        for j in range(count):
            number = B[(begin + j) * G[MS]]
            for i in range(PANEL):
                X[j * PANEL + i] = number
    else:
        squared = count - count % 4 if columns.group == 1 and G[MS] == 1 else 0
        for i in range(PANEL):
            # Beyond the last query all is that of the last one: it is not stored.
            token, head = column_at(columns, min(i, columns.count - 1))
            start = head * G[MH] + token * G[MT] + begin * G[MS]
            done = np.int64(0)
            if i // 4 * 4 + 4 <= columns.count:
                done = squared
                if i % 4 == 0:
                    for j in range(0, squared, 4):
                        transpose_4(bias + 4 * (start + j), 4 * G[MT],
                                    memory.keys + 4 * (j * PANEL + i), 4 * PANEL)  # fmt: skip
            for j in range(done, count):
                X[j * PANEL + i] = B[start + j * G[MS]]
    for j in range(count * PANEL):
        W[j] = W[j] + X[j]


@kernel_part
def divide_sums(memory, value_dim, guard):
    """Divide the sums over values by the sums of exponentials.

    With a guard, 0 is the result of a blind query, whose sum of exponentials is 0; see `GUARDS`.
    """
    A, total = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    if guard:
        for i in range(PANEL):
            if total[i] == 0.0 or (guard == NAN and total[i] != total[i]):
                total[i] = 1.0
                for e in range(value_dim):
                    A[e * PANEL + i] = 0.0
    for i in range(PANEL):
        total[i] = divide(np.float32(1.0), total[i])
    for e in range(value_dim):
        for i in range(PANEL):
            A[e * PANEL + i] = A[e * PANEL + i] * total[i]


def attention_panels(dtype: DType, biased: bool = False) -> SpecializedKernel:
    """Return the kernel for operands of one type, `biased` ones with a bias for a mask: f32."""
    narrow = dtype is not dtypes.f32
    return attention_panel_task.specialize(
        SIZE=dtype.itemsize,
        MASK_SIZE=4 if biased else 1,
        NARROW=narrow,
        BIASED=biased,
        load_queries=query_loading(dtype),
        attend_blocks=attend_blocks.specialize(
            BLOCK=BLOCK,
            NARROW=narrow,
            segments_of=find_segment.specialize(),
            widen=widening(dtype),
            score_keys=score_panel_keys.specialize(
                PREFETCHES=False,
                tile_largest=score_tile_largest,
                tile_4=score_tile_4,
                tile_1=score_tile_1,
            ),
            weigh_scores=weigh_scores.specialize(BIASED=biased),
        ),
        store_results=result_storing(dtype),
    )
