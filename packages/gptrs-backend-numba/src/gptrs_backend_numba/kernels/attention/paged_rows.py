"""Attention over pages for a few rows: each by itself, block by block, while the keys are near."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer
from gptrs_backend_numba.codegen.scalar import tanh_f32
from gptrs_backend_numba.codegen.vector_ir import WIDTH, multiply_add
from gptrs_backend_numba.kernels.attention.attention_ir import prefetch_row
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
    key_at_part,
)
from gptrs_backend_numba.kernels.attention.paged_ir import page_dots, page_values
from gptrs_backend_numba.kernels.attention.paged_softmax_ir import softmax_pages_row

INF = np.float32(np.inf)
_CHUNK = 8
"""Vectors of sums in flight: enough for two units with a latency of four cycles."""


@kernel
def attend_rows_kernel(
    query, key, out, geometry, head, text, begin, first, count, ahead,
    *, HEAD_DIM, EACH, PAGE, SEGMENTS, WINDOWED, CAPPED, load_rows, segments_of, key_at, score_keys,
    add_values, store_results,
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
    held = np.empty(count * EACH + BLOCK + 2 * WIDTH + 8 * SEGMENTS + 16, np.float32)
    segments = (held.ctypes.data + 63) // 64 * 64
    scores = segments + 32 * SEGMENTS + 4 * WIDTH
    memory = scores + 4 * (BLOCK + WIDTH)
    W = pointer(scores, np.float32)
    load_rows(query, G, head, begin, first, count, memory, scale)
    lowest = first_seen(begin + first // group + ahead, G[WINDOW], WINDOWED)
    highest = end_seen(begin + (first + count - 1) // group + ahead, size)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        following = key_at(table, min(block + BLOCK, highest - 1), key, head, G[KV_HEADS])
        for r in range(count):
            position = begin + (first + r) // group + ahead
            low = max(first_seen(position, G[WINDOW], WINDOWED) - block, np.int64(0))
            high = min(end_seen(position, size) - block, np.int64(BLOCK))
            if low < high:
                row = memory + 4 * EACH * r
                sums, maximum = row + 4 * HEAD_DIM, row + 4 * (EACH - 2)
                totals = maximum - 4 * WIDTH
                parts = segments_of(
                    table, block, low, high, segments, key, G[VALUES], head, G[KV_HEADS]
                )
                score_keys(row, segments, parts, scores, block, following)
                if CAPPED:
                    cap_scores(scores + 4 * low, high - low, cap)
                first_group, groups = low // WIDTH, (high + WIDTH - 1) // WIDTH
                for j in range(first_group * WIDTH, low):
                    W[j] = -INF
                for j in range(high, groups * WIDTH):
                    W[j] = -INF
                softmax_pages_row(scores + 4 * WIDTH * first_group, groups - first_group,
                                  maximum, totals, maximum + 4)  # fmt: skip
                add_values(segments, parts, scores, maximum + 4, sums)
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
def score_keys_part(
    row, segments, parts, scores, block, following,
    *, ELEMENT, HEAD_DIM, VALUE_BYTES, KEY_BYTES, PAGE, load, dots, dots_of_one,
):  # fmt: skip
    """Compute the scores of the keys of segments; prefetch their values, and keys that follow.

    The processor alone looks too little ahead, and not beyond a page; `following` is the address of
    the keys of the next block. Scores beside those are overwritten, up to `WIDTH` on both sides.
    """
    S, W, X = pointer(segments, np.int64), pointer(scores, np.float32), pointer(row, np.float32)
    whole = HEAD_DIM // WIDTH * WIDTH
    for part in range(parts):
        key, value, place, count = S[4 * part], S[4 * part + 1], S[4 * part + 2], S[4 * part + 3]
        if whole > 0:
            if PAGE < WIDTH:
                for j in range(count):
                    dots_of_one(row, key + j * KEY_BYTES, scores + 4 * (place + j))
            else:
                # The last keys of a page are read again rather than any behind it.
                last = PAGE - WIDTH - (block + place) % PAGE
                for j in range(0, count, WIDTH):
                    prefetch_row(value + j * VALUE_BYTES, WIDTH * VALUE_BYTES)
                    ahead = key + (j + 2 * WIDTH) * KEY_BYTES
                    if j + 2 * WIDTH >= count:
                        start = S[4 * part + 4] if part + 1 < parts else following
                        ahead = start + (j + 2 * WIDTH - count) * KEY_BYTES
                    prefetch_row(ahead, WIDTH * KEY_BYTES)
                    at = min(j, last)
                    dots(row, key + at * KEY_BYTES, scores + 4 * (place + at))
        else:
            for j in range(place, place + count):
                W[j] = -0.0
        for j in range(count if whole < HEAD_DIM else 0):
            K = pointer(key + j * KEY_BYTES, ELEMENT)
            for d in range(whole, HEAD_DIM):
                W[place + j] = multiply_add(X[d], load(K[d]), W[place + j])


@kernel_part
def add_values_part(
    segments, parts, scores, factor, sums, *, ELEMENT, SIZE, VALUE_DIM, load, chunk, rest
):
    """Scale the sums, and add the values of segments times the exponentials of their scores."""
    vectors = VALUE_DIM // WIDTH
    for v in range(0, vectors - vectors % _CHUNK, _CHUNK):
        chunk(segments, parts, SIZE * WIDTH * v, scores, factor, sums + 4 * WIDTH * v)
    if vectors % _CHUNK:
        v = vectors - vectors % _CHUNK
        rest(segments, parts, SIZE * WIDTH * v, scores, factor, sums + 4 * WIDTH * v)
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
        CAPPED=kind.capped,
        load_rows=load_rows_part.specialize(**rows, SUNK=kind.sunk, load=load_of(query)),
        store_results=store_rows_part.specialize(
            **rows, VALUE_DIM=kind.value_dim, store=store_of(query)
        ),
        segments_of=find_segments(kind),
        key_at=key_at_part.specialize(PAGE=kind.page_size, KEY_BYTES=size * kind.head_dim),
        score_keys=score_keys_part.specialize(
            ELEMENT=element,
            HEAD_DIM=kind.head_dim,
            KEY_BYTES=size * kind.head_dim,
            VALUE_BYTES=size * kind.value_dim,
            PAGE=kind.page_size,
            load=load_of(pool),
            dots=page_dots(WIDTH, kind.head_dim, name),
            dots_of_one=page_dots(1, kind.head_dim, name),
        ),
        add_values=add_values_part.specialize(
            ELEMENT=element,
            SIZE=size,
            VALUE_DIM=kind.value_dim,
            load=load_of(pool),
            chunk=page_values(_CHUNK, kind.value_dim, name),
            rest=page_values(max(1, left), kind.value_dim, name),
        ),
    )
