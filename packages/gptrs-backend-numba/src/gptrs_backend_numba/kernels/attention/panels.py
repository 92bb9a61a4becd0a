"""Attention for a panel of queries that share their keys, block by block, wherever the keys lie.

Scores of a block of keys, their exponentials less the largest score so far, and sums of the values
times the exponentials; a larger score scales down what was summed before ("online softmax", Milakov
and Gimelshein 2018; Dao et al. 2022). Keys that no query of the panel sees are not read.

`segments_of` is the address function: it writes down where the keys and values of a block lie.
Contiguous keys are one segment, those of a text in pages a segment for each page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.attention.attention_ir import (
    LARGEST_SCORE_ROWS,
    ROWS,
    prefetch_row,
)
from gptrs_backend_numba.kernels.attention.paged_ir import value_tile
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, transpose

INF = np.float32(np.inf)

transpose_4 = transpose(4)
value_tile_largest, value_tile_4, value_tile_1 = (value_tile(rows) for rows in (ROWS, 4, 1))


class Columns(NamedTuple):
    """The columns of a panel: pairs of a token and one of the `group` heads that share keys.

    Column i of `count` has the token `(first + i) // group` and the head `(first + i) % group` of
    those of the key head `head`.
    """

    group: int
    head: int
    first: int
    count: int


class Source(NamedTuple):
    """The keys and values of a panel."""

    keys: int
    values: int
    key_step: int
    """Bytes from one key to the next one of a segment."""
    value_step: int
    table: int
    """The address of the pages of a text; of contiguous keys, that of the mask of the sequence."""
    head: int
    """The head of keys in a page; of contiguous keys 0."""


class Memory(NamedTuple):
    """Addresses in the memory of a task; a row of a panel is `PANEL` numbers."""

    segments: int
    """Where the keys and values of a block are: see `paged_ir.SEGMENT`."""
    queries: int
    """A row of a panel for each number of a query."""
    sums: int
    """A row of a panel for each number of a value."""
    scores: int
    """A row of a panel for each key of a block."""
    totals: int
    """Rows of sums of exponentials."""
    maxima: int
    """The largest score so far of each column."""
    factors: int
    """The factors that rescale the sums."""
    limits: int
    """The end of the keys that each column sees, int32."""
    firsts: int
    """The first key that each column sees, int32."""
    keys: int
    """A block of them as f32, if they are not f32; if they are, a block of the bias."""
    values: int
    """A block of them as f32, if they are not f32."""


@kernel_part
def memory_size(head_dim, value_dim, block, totals, segments, widened):
    """Return how many numbers `memory_at` needs; `widened` is 1 for copies of keys and values."""
    return (
        PANEL * (head_dim + value_dim + block + totals + 4)
        + widened * block * (head_dim + value_dim)
        + 8 * segments
        + 16
    )


@kernel_part
def memory_at(address, head_dim, value_dim, block, totals, segment_count):
    """Return where everything is in the memory at an address, from a cache line on."""
    segments = (address + 63) // 64 * 64
    queries = segments + 32 * segment_count
    sums = queries + 4 * PANEL * head_dim
    scores = sums + 4 * PANEL * value_dim
    total = scores + 4 * PANEL * block
    maxima = total + 4 * PANEL * totals
    factors, limits, firsts = maxima + 4 * PANEL, maxima + 8 * PANEL, maxima + 12 * PANEL
    keys = maxima + 16 * PANEL
    values = keys + 4 * block * head_dim
    return Memory(
        segments, queries, sums, scores, total, maxima, factors, limits, firsts, keys, values
    )


@kernel_part
def attend_blocks(
    geometry, columns, source, memory, lowest, highest, head_dim, value_dim,
    *, BLOCK, NARROW, segments_of, widen, score_keys, weigh_scores,
):  # fmt: skip
    """Add the values of the keys from `lowest` to `highest` to the sums of a panel.

    Blocks begin at multiples of `BLOCK`, wherever the first key is.
    """
    G = pointer(geometry, np.int64)
    for block in range(lowest // BLOCK * BLOCK, highest, BLOCK):
        low, high = max(lowest - block, np.int64(0)), min(highest - block, np.int64(BLOCK))
        parts = segments_of(G, source, block, low, high, memory.segments)
        key_step, value_step = source.key_step, source.value_step
        if NARROW:
            row = widen(memory.segments, parts, key_step, value_step, memory.keys, memory.values,
                        head_dim, value_dim)  # fmt: skip
            S = pointer(memory.segments, np.int64)
            # Their first position in the block, S[2], stays: the scores begin there, too.
            S[0], S[1], S[3] = memory.keys, memory.values, row
            parts, key_step, value_step = np.int64(1), 4 * head_dim, 4 * value_dim
        score_keys(memory, parts, key_step, value_step, head_dim)
        weigh_scores(geometry, columns, source, memory, block, low, high)
        add_values(memory, parts, value_step, value_dim)


@kernel_part
def column_at(columns, i):
    """Return the token and the head of a column."""
    c = columns.first + i
    token = c // columns.group
    return token, columns.head * columns.group + c - token * columns.group


@kernel_part
def clear(memory, value_dim, totals):
    """Begin all sums."""
    A, T = pointer(memory.sums, np.float32), pointer(memory.totals, np.float32)
    M = pointer(memory.maxima, np.float32)
    for i in range(PANEL * value_dim):
        A[i] = 0.0
    for i in range(PANEL * totals):
        T[i] = 0.0
    for i in range(PANEL):
        M[i] = -INF


@kernel_part
def load_columns(
    query, columns, origin, token_step, head_step, memory, head_dim, scale,
    *, ELEMENT, WIDE, load,
):  # fmt: skip
    """Put the scaled queries side by side; those behind the last are 0.

    The offset `origin` of the first query and both strides count elements.
    """
    group, count = columns.group, columns.count
    X, Q = pointer(memory.queries, np.float32), pointer(query, ELEMENT)
    # Four queries at a time, if they are evenly apart: consecutive ones, or heads of one.
    even = WIDE and (group == 1 or group % 4 == 0)
    step = token_step if group == 1 else head_step
    squared = head_dim - head_dim % 4 if even else 0
    for i in range(PANEL):
        if i < count:
            token, head = column_at(columns, i)
            start = origin + token * token_step + head * head_step
            done = np.int64(0)
            if i // 4 * 4 + 4 <= count:
                done = squared
                if i % 4 == 0:
                    for d in range(0, squared, 4):
                        transpose_4(query + 4 * (start + d), 4 * step,
                                    memory.queries + 4 * (d * PANEL + i), 4 * PANEL)  # fmt: skip
            for d in range(done, head_dim):
                X[d * PANEL + i] = load(Q[start + d])
        else:
            for d in range(head_dim):
                X[d * PANEL + i] = 0.0
    for i in range(head_dim * PANEL):
        X[i] = X[i] * scale


@kernel_part
def widen_segments(
    segments, parts, key_step, value_step, keys, values, head_dim, value_dim, *, widen
):
    """Bring the keys and values of all segments to f32, one after another; return how many."""
    S = pointer(segments, np.int64)
    row = np.int64(0)
    for part in range(parts):
        count = S[4 * part + 3]
        widen(S[4 * part], key_step, count, keys + 4 * head_dim * row, head_dim)
        widen(S[4 * part + 1], value_step, count, values + 4 * value_dim * row, value_dim)
        row += count
    return row


@kernel_part
def widen_floats(source, step, count, target, size, *, ELEMENT, load):
    """Bring `count` vectors of `size` numbers to f32, `step` bytes apart."""
    T = pointer(target, np.float32)
    for j in range(count):
        X = pointer(source + j * step, ELEMENT)
        for d in range(size):
            T[j * size + d] = load(X[d])


@kernel_part
def widen_codes(source, step, count, target, size):
    """Bring `count` vectors of `size` codes of 8 bits to f32; behind each is its scale, f32."""
    for j in range(count):
        codes, T = pointer(source + j * step, np.int8), pointer(target + 4 * size * j, np.float32)
        scale = pointer(source + j * step + size, np.float32)[0]
        for d in range(size):
            T[d] = np.float32(codes[d]) * scale


@kernel_part
def score_panel_keys(
    memory, parts, step, value_step, head_dim,
    *, PREFETCHES, tile_largest, tile_4, tile_1,
):  # fmt: skip
    """Compute scores of the keys of segments, in tiles from the largest to the smallest.

    With `PREFETCHES`, prefetch their values: the processor alone looks too little ahead.
    """
    S = pointer(memory.segments, np.int64)
    for part in range(parts):
        key, value, count = S[4 * part], S[4 * part + 1], S[4 * part + 3]
        scores = memory.scores + 4 * PANEL * S[4 * part + 2]
        row = np.int64(0)
        if LARGEST_SCORE_ROWS > 4:
            while row + LARGEST_SCORE_ROWS <= count:
                if PREFETCHES:
                    prefetch_row(value + value_step * row, value_step * LARGEST_SCORE_ROWS)
                tile_largest(key + row * step, step, memory.queries, scores + 4 * PANEL * row,
                             head_dim)  # fmt: skip
                row += LARGEST_SCORE_ROWS
        while row + 4 <= count:
            if PREFETCHES:
                prefetch_row(value + value_step * row, value_step * 4)
            tile_4(key + row * step, step, memory.queries, scores + 4 * PANEL * row, head_dim)
            row += 4
        while row < count:
            tile_1(key + row * step, step, memory.queries, scores + 4 * PANEL * row, head_dim)
            row += 1


@kernel_part
def add_values(memory, parts, step, value_dim):
    """Scale the sums, and add the values of segments times the exponentials of their scores."""
    row = np.int64(0)
    while row + ROWS <= value_dim:
        value_tile_largest(memory.segments, parts, step, 4 * row, memory.scores, memory.factors,
                           memory.sums + 4 * PANEL * row)  # fmt: skip
        row += ROWS
    while row + 4 <= value_dim:
        value_tile_4(memory.segments, parts, step, 4 * row, memory.scores, memory.factors,
                     memory.sums + 4 * PANEL * row)  # fmt: skip
        row += 4
    while row < value_dim:
        value_tile_1(memory.segments, parts, step, 4 * row, memory.scores, memory.factors,
                     memory.sums + 4 * PANEL * row)  # fmt: skip
        row += 1


@kernel_part
def store_columns(
    out, columns, origin, token_step, head_step, memory, value_dim, *, ELEMENT, WIDE, store
):
    """Store the quotients, which are where the sums were, as elements."""
    group, count = columns.group, columns.count
    A, O = pointer(memory.sums, np.float32), pointer(out, ELEMENT)
    even = WIDE and (group == 1 or group % 4 == 0)
    step = token_step if group == 1 else head_step
    squared = value_dim - value_dim % 4 if even else 0
    for i in range(count):
        token, head = column_at(columns, i)
        start = origin + token * token_step + head * head_step
        done = np.int64(0)
        if i // 4 * 4 + 4 <= count:
            done = squared
            if i % 4 == 0:
                for e in range(0, squared, 4):
                    transpose_4(memory.sums + 4 * (e * PANEL + i), 4 * PANEL,
                                out + 4 * (start + e), 4 * step)  # fmt: skip
        for e in range(done, value_dim):
            O[start + e] = store(A[e * PANEL + i])


def query_loading(dtype: DType) -> SpecializedKernel:
    """Return the part that loads queries of one type."""
    wide = dtype is dtypes.f32
    return load_columns.specialize(ELEMENT=memory_of(dtype), WIDE=wide, load=load_of(dtype))


def result_storing(dtype: DType) -> SpecializedKernel:
    """Return the part that stores results of one type."""
    wide = dtype is dtypes.f32
    return store_columns.specialize(ELEMENT=memory_of(dtype), WIDE=wide, store=store_of(dtype))


def widening(dtype: DType) -> SpecializedKernel:
    """Return the part that brings keys and values of one type to f32: si8 are codes."""
    if dtype is dtypes.si8:
        return widen_segments.specialize(widen=widen_codes.specialize())
    floats = widen_floats.specialize(ELEMENT=memory_of(dtype), load=load_of(dtype))
    return widen_segments.specialize(widen=floats)
