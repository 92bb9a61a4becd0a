"""Attention over pages for a few rows: each by itself, block by block, while the keys are near.

Pages of floats are read where they lie, and what comes next is prefetched meanwhile. Pages of codes
are brought to f32 a block at a time, once for all rows that see it, and read as one segment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
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
    WIDTH_OF_TABLE,
    WINDOW,
    PageKind,
    end_seen,
    find_segments,
    first_block_after,
    first_seen,
    source_of,
)
from gptrs_backend_numba.kernels.attention.paged_ir import page_dots, page_values
from gptrs_backend_numba.kernels.attention.panels import INF, widening

_CHUNK = 8
"""Vectors of sums in flight: enough for two units with a latency of four cycles."""


class Memory(NamedTuple):
    """Addresses in the memory of a task."""

    segments: int
    """Where the keys and values of a block are that a row sees."""
    coming: int
    """Where those are that are prefetched meanwhile."""
    beyond: int
    """Where those are that the next task reads first."""
    keys: int
    """A block of them, brought to f32."""
    values: int
    """A block of them, brought to f32."""
    scores: int
    """The scores of a row and a block, with room for a vector before and behind."""
    rows: int


@kernel
def attend_rows_kernel(
    query, key, out, geometry, task, head, text, begin, first, count, ahead,
    *, HEAD_DIM, EACH, PAGE, NUMBERS, WINDOWED, memory_at, load_rows, source_of, beyond_of,
    open_block, segments_of_row, prefetch_rest, score_keys, weigh_scores, add_values, store_results,
):  # fmt: skip
    """Compute `count` columns of a text from `first` on; see `paged_geometry`.

    `EACH` numbers are kept of a row: the query, sums over values up to a whole vector, a vector of
    sums of exponentials, the largest score so far, a factor. `NUMBERS` are kept besides.
    """
    G = pointer(geometry, np.int64)
    group, size = G[GROUP], G[WIDTH_OF_TABLE] * PAGE
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    cap = pointer(geometry + 8 * SOFTCAP, np.float32)[0]
    source = source_of(G, key, text, head)
    held = np.empty(count * EACH + NUMBERS, np.float32)
    memory = memory_at(held.ctypes.data)
    load_rows(query, G, head, begin, first, count, memory.rows, scale)
    lowest = first_seen(begin + first // group + ahead, G[WINDOW], WINDOWED)
    highest = end_seen(begin + (first + count - 1) // group + ahead, size)
    beyond_parts = beyond_of(geometry, task, key, memory.beyond)
    taken = np.int64(0)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        coming_parts, taken = open_block(
            G, source, block, lowest, highest, memory, beyond_parts, taken
        )
        parts = np.int64(0)
        for r in range(count):
            position = begin + (first + r) // group + ahead
            low = max(first_seen(position, G[WINDOW], WINDOWED) - block, np.int64(0))
            high = min(end_seen(position, size) - block, np.int64(BLOCK))
            if low < high:
                row = memory.rows + 4 * EACH * r
                sums, maximum = row + 4 * HEAD_DIM, row + 4 * (EACH - 2)
                parts = segments_of_row(G, source, block, low, high, memory, coming_parts)
                score_keys(row, memory.segments, parts, memory.coming, memory.scores, block, r,
                           count)  # fmt: skip
                weigh_scores(memory.scores, low, high, cap, maximum)
                fetched = memory.coming if r == count - 1 else memory.segments
                add_values(memory.segments, parts, fetched, memory.scores, maximum + 4, sums)
        prefetch_rest(memory.coming, coming_parts, memory.segments, parts)
    prefetch_rest(memory.beyond + 32 * taken, beyond_parts - taken, memory.segments, np.int64(0))
    store_results(out, G, head, begin, first, count, memory.rows)
    keep_alive(held)
    return 0


@kernel_part
def memory_at_part(address, *, SEGMENTS, AHEAD, KEYS, VALUES):
    """Return where everything is in the memory at an address, from a cache line on.

    What is prefetched has `AHEAD` bytes, widened keys `KEYS`, values `VALUES`. Without `AHEAD` the
    block itself is prefetched, which is in the cache.
    """
    segments = (address + 63) // 64 * 64
    keys = segments + 32 * SEGMENTS + 2 * AHEAD
    values = keys + KEYS
    scores = values + VALUES + 4 * WIDTH
    return Memory(segments, segments + AHEAD, segments + 2 * AHEAD, keys, values, scores,
                  scores + 4 * (BLOCK + WIDTH))  # fmt: skip


# Keys and values of floats are read where they lie.


@kernel_part
def segments_in_place(G, source, block, low, high, memory, coming_parts, *, segments_of):
    """Write down where the positions of a block are that a row sees; return in how many parts."""
    parts = segments_of(G, source, block, low, high, memory.segments)
    pair_segments(memory.segments, parts, memory.coming, coming_parts)
    return parts


# Codes are brought to f32 before.


@kernel_part
def nothing_beyond(geometry, task, keys, segments):
    """Prefetch nothing: return 0 parts."""
    return np.int64(0)


@kernel_part
def widen_block(
    G, source, block, lowest, highest, memory, beyond_parts, taken,
    *, HEAD_DIM, VALUE_DIM, segments_of, widen,
):  # fmt: skip
    """Bring a block of keys and values to f32, and prefetch nothing: return 0 parts."""
    low, high = max(lowest - block, np.int64(0)), min(highest - block, np.int64(BLOCK))
    parts = segments_of(G, source, block, low, high, memory.segments)
    widen(memory.segments, parts, source.key_step, source.value_step,
          memory.keys + 4 * HEAD_DIM * low, memory.values + 4 * VALUE_DIM * low,
          HEAD_DIM, VALUE_DIM)  # fmt: skip
    return np.int64(0), taken


@kernel_part
def widened_segment(
    G, source, block, low, high, memory, coming_parts, *, HEAD_DIM, VALUE_DIM
):  # fmt: skip
    """Write down where the widened positions are that a row sees: in one part."""
    S = pointer(memory.segments, np.int64)
    S[0], S[1] = memory.keys + 4 * HEAD_DIM * low, memory.values + 4 * VALUE_DIM * low
    S[2], S[3] = low, high - low
    return np.int64(1)


@kernel_part
def no_rest(coming, coming_parts, segments, parts):
    """Prefetch nothing."""


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
        source = (begin + n) * G[ROW_STEP] + (head * group + c - n * group) * G[HEAD_STEP]
        X[EACH - 2] = -INF
        for i in range(HEAD_DIM, EACH - 2):
            X[i] = 0.0
        if SUNK:
            X[EACH - 2] = pointer(G[SINKS], np.float32)[head * group + c - n * group]
            X[EACH - 2 - WIDTH] = 1.0
        for d in range(HEAD_DIM):
            X[d] = load(Q[source + d]) * scale


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
        target = (((begin + n) * G[KV_HEADS] + head) * group + c - n * group) * VALUE_DIM
        for e in range(VALUE_DIM):
            O[target + e] = store(A[e] * total + np.float32(0.0))  # -0 becomes 0


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
    # -inf adds an exponential of 0 to the lane of its position: the order of sums does not move.
    for j in range(first_group * WIDTH, low):
        W[j] = -INF
    for j in range(high, groups * WIDTH):
        W[j] = -INF
    softmax_pages_row(scores + 4 * WIDTH * first_group, groups - first_group, maximum,
                      maximum - 4 * WIDTH, maximum + 4)  # fmt: skip


@kernel_part
def segments_ahead(
    G, source, block, lowest, highest, memory, beyond_parts, taken, *, PAGE, segments_of
):  # fmt: skip
    """Write down what is prefetched during a block: the next block, then the next task's first.

    Return its number of segments, about as many as the block has, and how many of those `beyond`
    are taken by now.
    """
    end, parts = min(highest - block, np.int64(BLOCK)), np.int64(0)
    if block + BLOCK < highest:
        high = min(highest - block - BLOCK, np.int64(BLOCK))
        parts = segments_of(G, source, block + BLOCK, np.int64(0), high, memory.coming)
    while parts * PAGE < end and taken < beyond_parts:
        copy_segment(memory.beyond + 32 * taken, memory.coming + 32 * parts)
        parts += 1
        taken += 1
    return parts, taken


@register_jitable
def copy_segment(source, target):
    """Copy a segment from one address to another."""
    S, T = pointer(source, np.int64), pointer(target, np.int64)
    for i in range(4):
        T[i] = S[i]


@kernel_part
def prefetch_rest_part(coming, coming_parts, segments, parts, *, KEY_BYTES, VALUE_BYTES):
    """Prefetch the coming segments as far as they are longer than those of the block."""
    S, A = pointer(segments, np.int64), pointer(coming, np.int64)
    for part in range(coming_parts):
        done = S[4 * part + 3] if part < parts else np.int64(0)
        keys, values = (done + WIDTH - 1) // WIDTH * WIDTH, done
        prefetch_far(A[4 * part] + keys * KEY_BYTES, (A[4 * part + 3] - keys) * KEY_BYTES)
        prefetch_far(A[4 * part + 1] + values * VALUE_BYTES,
                     (A[4 * part + 3] - values) * VALUE_BYTES)  # fmt: skip


@kernel_part
def pair_segments(segments, parts, coming, coming_parts):
    """Pad the segments to prefetch to the number of those read: the added ones are empty.

    Their addresses are those of segments read now: prefetching cached memory is cheap, prefetching
    unmapped memory is not.
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
    """Compute the scores of the keys of segments; prefetch a share of the next keys.

    Scores beside those are overwritten, up to `WIDTH` on both sides.
    """
    S, A = pointer(segments, np.int64), pointer(coming, np.int64)
    W, X = pointer(scores, np.float32), pointer(row, np.float32)
    whole = HEAD_DIM // WIDTH * WIDTH
    group = np.int64(0)
    for part in range(parts):
        key, start, count = S[4 * part], S[4 * part + 2], S[4 * part + 3]
        if whole > 0:
            if PAGE < WIDTH:
                for j in range(count):
                    at = key + j * KEY_BYTES
                    dots_of_one(row, at, at, scores + 4 * (start + j))
            else:
                # The last keys of a page are read again rather than any behind it.
                last = PAGE - WIDTH - (block + start) % PAGE
                for j in range(0, count, WIDTH):
                    at = min(j, last)
                    fetched = key + at * KEY_BYTES
                    if group % shares == share and j < A[4 * part + 3]:
                        fetched = A[4 * part] + j * KEY_BYTES
                    dots(row, key + at * KEY_BYTES, fetched, scores + 4 * (start + at))
                    group += 1
        else:
            for j in range(start, start + count):
                W[j] = -0.0
        for j in range(count if whole < HEAD_DIM else 0):
            K = pointer(key + j * KEY_BYTES, ELEMENT)
            for d in range(whole, HEAD_DIM):
                W[start + j] = multiply_add(X[d], load(K[d]), W[start + j])


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
            value, start, count = S[4 * part + 1], S[4 * part + 2], S[4 * part + 3]
            for j in range(count):
                V = pointer(value + j * SIZE * VALUE_DIM, ELEMENT)
                for e in range(vectors * WIDTH, VALUE_DIM):
                    A[e] = multiply_add(W[start + j], load(V[e]), A[e])


def attend_rows(query: DType, kind: PageKind) -> SpecializedKernel:
    """Return the kernel for queries of one type and a kind of pages."""
    each = kind.head_dim + -(-kind.value_dim // WIDTH) * WIDTH + WIDTH + 2
    rows = {"ELEMENT": memory_of(query), "HEAD_DIM": kind.head_dim, "EACH": each}
    return attend_rows_kernel.specialize(
        HEAD_DIM=kind.head_dim,
        EACH=each,
        PAGE=kind.page_size,
        WINDOWED=kind.windowed,
        load_rows=load_rows_part.specialize(**rows, SUNK=kind.sunk, load=load_of(query)),
        store_results=store_rows_part.specialize(
            **rows, VALUE_DIM=kind.value_dim, store=store_of(query)
        ),
        source_of=source_of(kind),
        weigh_scores=weigh_scores_part.specialize(CAPPED=kind.capped),
        **(_widened(kind) if kind.dtype is dtypes.si8 else _in_place(kind)),
    )


def _in_place(kind: PageKind) -> dict[str, object]:
    """Return the bindings that read floats where they lie."""
    segments_of = find_segments(kind)
    return {
        **_memory(kind, ahead=32 * kind.segments),
        **_products(kind),
        "beyond_of": first_block_after(kind),
        "open_block": segments_ahead.specialize(PAGE=kind.page_size, segments_of=segments_of),
        "segments_of_row": segments_in_place.specialize(segments_of=segments_of),
        "prefetch_rest": prefetch_rest_part.specialize(
            KEY_BYTES=kind.key_bytes, VALUE_BYTES=kind.value_bytes
        ),
    }


def _widened(kind: PageKind) -> dict[str, object]:
    """Return the bindings that bring codes to f32; a block is then read as one page."""
    sizes = {"HEAD_DIM": kind.head_dim, "VALUE_DIM": kind.value_dim}
    return {
        **_memory(kind, keys=4 * BLOCK * kind.head_dim, values=4 * BLOCK * kind.value_dim),
        **_products(replace(kind, dtype=dtypes.f32, page_size=BLOCK)),
        "beyond_of": nothing_beyond.specialize(),
        "open_block": widen_block.specialize(
            **sizes, segments_of=find_segments(kind), widen=widening(kind.dtype)
        ),
        "segments_of_row": widened_segment.specialize(**sizes),
        "prefetch_rest": no_rest.specialize(),
    }


def _memory(kind: PageKind, ahead: int = 0, keys: int = 0, values: int = 0) -> dict[str, object]:
    """Return the bindings for the memory of a task, by the bytes of its parts."""
    sizes = {"SEGMENTS": kind.segments, "AHEAD": ahead, "KEYS": keys, "VALUES": values}
    numbers = 8 * kind.segments + (2 * ahead + keys + values) // 4 + BLOCK + 2 * WIDTH + 16
    return {"NUMBERS": numbers, "memory_at": memory_at_part.specialize(**sizes)}


def _products(kind: PageKind) -> dict[str, object]:
    """Return the bindings that multiply a row with keys and values of floats."""
    pool, name, dim = kind.dtype, str(kind.dtype), kind.value_dim
    left = dim // WIDTH % _CHUNK
    return {
        "score_keys": score_keys_part.specialize(
            ELEMENT=memory_of(pool),
            HEAD_DIM=kind.head_dim,
            KEY_BYTES=kind.key_bytes,
            PAGE=kind.page_size,
            load=load_of(pool),
            dots=page_dots(WIDTH, kind.head_dim, name),
            dots_of_one=page_dots(1, kind.head_dim, name),
        ),
        "add_values": add_values_part.specialize(
            ELEMENT=memory_of(pool),
            SIZE=pool.itemsize,
            VALUE_DIM=dim,
            load=load_of(pool),
            chunk=page_values(_CHUNK, dim, name),
            rest=page_values(max(1, left), dim, name),
        ),
    }
