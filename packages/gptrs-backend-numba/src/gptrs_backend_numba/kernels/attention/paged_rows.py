"""Attention over pages for a few rows: each by itself, block by block, while the keys are near."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.codegen.scalar import tanh_f32
from gptrs_backend_numba.codegen.vector_ir import WIDTH, multiply_add
from gptrs_backend_numba.kernels.attention.attention_ir import prefetch_far, softmax_pages_row
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
    first_block_after,
    first_seen,
)
from gptrs_backend_numba.kernels.attention.paged_ir import page_dots, page_values

INF = np.float32(np.inf)
_CHUNK = 8
"""Vectors of sums in flight: enough for two units with a latency of four cycles."""


@kernel
def attend_rows_kernel(
    query, key, out, geometry, task, head, text, begin, first, count, ahead,
    *, HEAD_DIM, EACH, PAGE, SEGMENTS, WINDOWED, load_rows, segments_of, segments_ahead,
    first_block_after, prefetch_rest, score_keys, weigh_scores, add_values, store_results,
):  # fmt: skip
    """Compute `count` columns of a text from `first` on; see `paged_geometry`.

    `EACH` numbers are kept of a row: the query, sums over values up to a whole vector, a vector of
    sums of exponentials, the largest score so far, a factor.
    """
    G = pointer(geometry, np.int64)
    group, size = G[GROUP], G[WIDTH_OF_TABLE] * PAGE
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    cap = pointer(geometry + 8 * SOFTCAP, np.float32)[0]
    table = G[TABLE] + 4 * text * G[WIDTH_OF_TABLE]
    held = np.empty(count * EACH + BLOCK + 2 * WIDTH + 24 * SEGMENTS + 16, np.float32)
    segments = (held.ctypes.data + 63) // 64 * 64
    coming, beyond = segments + 32 * SEGMENTS, segments + 64 * SEGMENTS
    scores = beyond + 32 * SEGMENTS + 4 * WIDTH
    memory = scores + 4 * (BLOCK + WIDTH)
    load_rows(query, G, head, begin, first, count, memory, scale)
    lowest = first_seen(begin + first // group + ahead, G[WINDOW], WINDOWED)
    highest = end_seen(begin + (first + count - 1) // group + ahead, size)
    beyond_parts = first_block_after(geometry, task, key, beyond)
    taken = np.int64(0)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        coming_parts, taken = segments_ahead(
            G, table, key, head, block, highest, coming, beyond, beyond_parts, taken
        )
        parts = np.int64(0)
        for r in range(count):
            position = begin + (first + r) // group + ahead
            low = max(first_seen(position, G[WINDOW], WINDOWED) - block, np.int64(0))
            high = min(end_seen(position, size) - block, np.int64(BLOCK))
            if low < high:
                row = memory + 4 * EACH * r
                sums, maximum = row + 4 * HEAD_DIM, row + 4 * (EACH - 2)
                parts = segments_of(
                    table, block, low, high, segments, key, G[VALUES], head, G[KV_HEADS]
                )
                pair_segments(segments, parts, coming, coming_parts)
                score_keys(row, segments, parts, coming, scores, block, r, count)
                weigh_scores(scores, low, high, cap, maximum)
                fetched = coming if r == count - 1 else segments
                add_values(segments, parts, fetched, scores, maximum + 4, sums)
        prefetch_rest(coming, coming_parts, segments, parts)
    prefetch_rest(beyond + 32 * taken, beyond_parts - taken, segments, np.int64(0))
    store_results(out, G, head, begin, first, count, memory)
    keep_alive(held)
    return 0


@kernel_part
def load_rows_part(
    query, G, head, begin, first, count, memory, scale, *, ELEMENT, HEAD_DIM, EACH, SUNK, load
):
    """Put down the scaled queries, and begin all sums.

    With `SUNK` they begin with the score of the head, whose exponential less itself is 1.
    """
    Q, group = pointer(query, ELEMENT), G[GROUP]
    for r in range(count):
        c = first + r
        n = c // group
        X = pointer(memory + 4 * EACH * r, np.float32)
        place = (begin + n) * G[ROW_STEP] + (head * group + c - n * group) * G[HEAD_STEP]
        X[EACH - 2] = -INF
        for i in range(HEAD_DIM, EACH - 2):
            X[i] = 0.0
        if SUNK:
            X[EACH - 2] = pointer(G[SINKS], np.float32)[head * group + c - n * group]
            X[EACH - 2 - WIDTH] = 1.0
        for d in range(HEAD_DIM):
            X[d] = load(Q[place + d]) * scale


@kernel_part
def store_rows_part(
    out, G, head, begin, first, count, memory, *, ELEMENT, HEAD_DIM, VALUE_DIM, EACH, store
):
    """Divide the sums over values by the sums of exponentials, and store them as elements."""
    O, group = pointer(out, ELEMENT), G[GROUP]
    for r in range(count):
        c = first + r
        n = c // group
        A = pointer(memory + 4 * (EACH * r + HEAD_DIM), np.float32)
        T = pointer(memory + 4 * (EACH * r + EACH - 2 - WIDTH), np.float32)
        total = T[0]
        for j in range(1, WIDTH):
            total += T[j]
        if total != 0.0:  # else every score is -inf
            total = divide(np.float32(1.0), total)
        place = (((begin + n) * G[KV_HEADS] + head) * group + c - n * group) * VALUE_DIM
        for e in range(VALUE_DIM):
            O[place + e] = store(A[e] * total + np.float32(0.0))  # -0 becomes 0


@register_jitable
def cap_scores(scores, count, cap):
    """Replace scores by `cap * tanh(score / cap)`."""
    W = pointer(scores, np.float32)
    for j in range(count):
        W[j] = tanh_f32(divide(W[j], cap)) * cap


@kernel_part
def weigh_scores_part(scores, low, high, cap, maximum, *, CAPPED):
    """Replace the scores of the positions from `low` to `high` of a block by their exponentials.

    The sums of exponentials are before the maximum; the factor for sums so far is put behind it.
    """
    W = pointer(scores, np.float32)
    if CAPPED:
        cap_scores(scores + 4 * low, high - low, cap)
    first_group, groups = low // WIDTH, (high + WIDTH - 1) // WIDTH
    for j in range(first_group * WIDTH, low):
        W[j] = -INF
    for j in range(high, groups * WIDTH):
        W[j] = -INF
    softmax_pages_row(scores + 4 * WIDTH * first_group, groups - first_group, maximum,
                      maximum - 4 * WIDTH, maximum + 4)  # fmt: skip


@kernel_part
def segments_ahead_part(
    G, table, key, head, block, highest, coming, beyond, beyond_parts, taken,
    *, PAGE, segments_of,
):  # fmt: skip
    """Write down what is prefetched during a block: the next block, then that of the next task.

    Return its number of segments, about as many as the block has, and how many of those `beyond`
    are taken by now.
    """
    end, parts = min(highest - block, np.int64(BLOCK)), np.int64(0)
    if block + BLOCK < highest:
        high = min(highest - block - BLOCK, np.int64(BLOCK))
        parts = segments_of(table, block + BLOCK, np.int64(0), high, coming, key, G[VALUES], head,
                            G[KV_HEADS])  # fmt: skip
    while parts * PAGE < end and taken < beyond_parts:
        copy_segment(beyond + 32 * taken, coming + 32 * parts)
        parts += 1
        taken += 1
    return parts, taken


@register_jitable
def copy_segment(source, target):
    """Write a segment to another place."""
    S, T = pointer(source, np.int64), pointer(target, np.int64)
    for i in range(4):
        T[i] = S[i]


@kernel_part
def prefetch_rest_part(coming, coming_parts, segments, parts, *, KEY_BYTES, VALUE_BYTES):
    """Prefetch what is left of the coming segments beside those of the block."""
    S, A = pointer(segments, np.int64), pointer(coming, np.int64)
    for part in range(coming_parts):
        done = S[4 * part + 3] if part < parts else np.int64(0)
        keys, values = (done + WIDTH - 1) // WIDTH * WIDTH, done
        prefetch_far(A[4 * part] + keys * KEY_BYTES, (A[4 * part + 3] - keys) * KEY_BYTES)
        prefetch_far(A[4 * part + 1] + values * VALUE_BYTES,
                     (A[4 * part + 3] - values) * VALUE_BYTES)  # fmt: skip


@kernel_part
def pair_segments(segments, parts, coming, coming_parts):
    """Have as many segments to prefetch as there are: further ones are empty, and lie with these.

    To prefetch what is in the cache takes little time, what is no memory more.
    """
    S, A = pointer(segments, np.int64), pointer(coming, np.int64)
    for part in range(coming_parts, parts):
        A[4 * part], A[4 * part + 1] = S[4 * part], S[4 * part + 1]
        A[4 * part + 2], A[4 * part + 3] = 0, 0


@kernel_part
def score_keys_part(
    row, segments, parts, coming, scores, block, share, shares,
    *, ELEMENT, HEAD_DIM, KEY_BYTES, PAGE, load, dots, dots_of_one,
):  # fmt: skip
    """Compute the scores of the keys of segments; prefetch a share of those that come next.

    Scores beside those are overwritten, up to `WIDTH` on both sides.
    """
    S, A = pointer(segments, np.int64), pointer(coming, np.int64)
    W, X = pointer(scores, np.float32), pointer(row, np.float32)
    whole = HEAD_DIM // WIDTH * WIDTH
    group = np.int64(0)
    for part in range(parts):
        key, place, count = S[4 * part], S[4 * part + 2], S[4 * part + 3]
        if whole > 0:
            if PAGE < WIDTH:
                for j in range(count):
                    at = key + j * KEY_BYTES
                    dots_of_one(row, at, at, scores + 4 * (place + j))
            else:
                # The last keys of a page are read again rather than any behind it.
                last = PAGE - WIDTH - (block + place) % PAGE
                for j in range(0, count, WIDTH):
                    at = min(j, last)
                    fetched = key + at * KEY_BYTES
                    if group % shares == share and j < A[4 * part + 3]:
                        fetched = A[4 * part] + j * KEY_BYTES
                    dots(row, key + at * KEY_BYTES, fetched, scores + 4 * (place + at))
                    group += 1
        else:
            for j in range(place, place + count):
                W[j] = -0.0
        for j in range(count if whole < HEAD_DIM else 0):
            K = pointer(key + j * KEY_BYTES, ELEMENT)
            for d in range(whole, HEAD_DIM):
                W[place + j] = multiply_add(X[d], load(K[d]), W[place + j])


@kernel_part
def add_values_part(
    segments, parts, coming, scores, factor, sums, *, ELEMENT, SIZE, VALUE_DIM, load, chunk, rest
):
    """Scale the sums, and add the values of segments times the exponentials of their scores."""
    vectors = VALUE_DIM // WIDTH
    for v in range(0, vectors - vectors % _CHUNK, _CHUNK):
        chunk(segments, parts, coming, SIZE * WIDTH * v, scores, factor, sums + 4 * WIDTH * v)
    if vectors % _CHUNK:
        v = vectors - vectors % _CHUNK
        rest(segments, parts, coming, SIZE * WIDTH * v, scores, factor, sums + 4 * WIDTH * v)
    if VALUE_DIM % WIDTH:
        S, W = pointer(segments, np.int64), pointer(scores, np.float32)
        A, scale = pointer(sums, np.float32), pointer(factor, np.float32)[0]
        for e in range(vectors * WIDTH, VALUE_DIM):
            A[e] = A[e] * scale
        for part in range(parts):
            value, place, count = S[4 * part + 1], S[4 * part + 2], S[4 * part + 3]
            for j in range(count):
                V = pointer(value + j * SIZE * VALUE_DIM, ELEMENT)
                for e in range(vectors * WIDTH, VALUE_DIM):
                    A[e] = multiply_add(W[place + j], load(V[e]), A[e])


def attend_rows(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the kernel for queries of one type and a kind of pages."""
    pool, name = kind.dtype, str(kind.dtype)
    element, size = memory_of(pool), pool.itemsize
    left = kind.value_dim // WIDTH % _CHUNK
    each = kind.head_dim + -(-kind.value_dim // WIDTH) * WIDTH + WIDTH + 2
    rows = {"ELEMENT": memory_of(query), "HEAD_DIM": kind.head_dim, "EACH": each}
    return attend_rows_kernel.specialize(
        HEAD_DIM=kind.head_dim,
        EACH=each,
        PAGE=kind.page_size,
        SEGMENTS=kind.segments,
        WINDOWED=kind.windowed,
        load_rows=load_rows_part.specialize(**rows, SUNK=kind.sunk, load=load_of(query)),
        store_results=store_rows_part.specialize(
            **rows, VALUE_DIM=kind.value_dim, store=store_of(query)
        ),
        segments_of=find_segments(kind),
        segments_ahead=segments_ahead_part.specialize(
            PAGE=kind.page_size, segments_of=find_segments(kind)
        ),
        first_block_after=first_block_after(kind),
        prefetch_rest=prefetch_rest_part.specialize(
            KEY_BYTES=size * kind.head_dim, VALUE_BYTES=size * kind.value_dim
        ),
        score_keys=score_keys_part.specialize(
            ELEMENT=element,
            HEAD_DIM=kind.head_dim,
            KEY_BYTES=size * kind.head_dim,
            PAGE=kind.page_size,
            load=load_of(pool),
            dots=page_dots(WIDTH, kind.head_dim, name),
            dots_of_one=page_dots(1, kind.head_dim, name),
        ),
        weigh_scores=weigh_scores_part.specialize(CAPPED=kind.capped),
        add_values=add_values_part.specialize(
            ELEMENT=element,
            SIZE=size,
            VALUE_DIM=kind.value_dim,
            load=load_of(pool),
            chunk=page_values(_CHUNK, kind.value_dim, name),
            rest=page_values(max(1, left), kind.value_dim, name),
        ),
    )
