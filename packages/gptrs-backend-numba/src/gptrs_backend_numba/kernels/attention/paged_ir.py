"""The products of attention over pages: keys and values where they lie in their pages.

A score is `WIDTH` sums, of the numbers d with one remainder of d / WIDTH each, that are added one
after another, then the numbers that are left over: a vector for one query, `WIDTH` passes for a
panel of queries, with the same result. Numbers of values are summed in the order of positions.
"""

from __future__ import annotations

from functools import cache
from itertools import islice

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I64,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
    number,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS, transposed_lanes

SIDE = 4 * WIDTH
"""Bytes of a vector."""
LINE = 64
"""Bytes of a cache line."""
NEGATIVE_ZERO = ir.Constant(VECTOR, [-0.0] * WIDTH)
"""The first summand of all sums: any number added to it stays as it is."""

VALUES_AT, POSITION_AT, COUNT_AT = 8, 16, 24
SEGMENT = 32
"""Bytes of a segment: positions that follow one another in memory.

The addresses of their keys and values, the position of the first in its block, their count.
"""


@cache
def page_score_tile(rows: int, head_dim: int):
    """Intrinsic: `rows` keys, f32 and one behind the other, times a panel of queries.

    Arguments: those of `attention_ir.score_tile`, whose step and count are known from `head_dim`.
    """

    @named_intrinsic(f"page_score_tile_{rows}_{head_dim}")
    def micro_kernel(typing_context, key, step, queries, out, count):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            key, queries, out = (emit.pointer(arguments[at]) for at in (0, 2, 3))
            sums = _scores(emit, rows, head_dim, key, queries)
            for at, value in enumerate(sums):
                row, vector = divmod(at, VECTORS)
                emit.store(value, emit.moved(out, 4 * PANEL * row + SIDE * vector))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return micro_kernel


def _scores(emit, rows, head_dim, key, queries):
    """Return the vectors of scores, row by row."""
    steps = head_dim // WIDTH

    def multiply(sums, key, queries, d):
        right = [emit.load(emit.moved(queries, 4 * PANEL * d + SIDE * v), VECTOR, 4)
                 for v in range(VECTORS)]  # fmt: skip
        lefts = [emit.splat(emit.load(emit.moved(key, 4 * (head_dim * m + d)), F32, 4))
                 for m in range(rows)]  # fmt: skip
        return [
            emit.multiply_add(lefts[at // VECTORS], right[at % VECTORS], value)
            for at, value in enumerate(sums)
        ]

    def lane(k, state):
        key, queries, *totals = state
        sums = [ZERO] * len(totals)
        for step in range(steps):
            sums = multiply(sums, key, queries, WIDTH * step)
        totals = [emit.builder.fadd(*pair) for pair in zip(totals, sums, strict=True)]
        return [emit.moved(key, 4), emit.moved(queries, 4 * PANEL), *totals]

    totals = [NEGATIVE_ZERO] * (rows * VECTORS)
    if steps:
        totals = emit.loop(number(WIDTH), 1, [key, queries, *totals], lane)[2:]
    for d in range(WIDTH * steps, head_dim):
        totals = multiply(totals, key, queries, d)
    return totals


@cache
def value_tile(rows: int):
    """Intrinsic: scale sums, and add `rows` numbers of the values times probabilities.

    Arguments: the address of the first segment and their number; the bytes of a value, f32; those
    before the first of the numbers; the address of the probabilities, a row of a panel for each
    position of the block; of a row of factors; of the sums, `rows` rows of a panel.
    """

    @named_intrinsic(f"value_tile_{rows}")
    def micro_kernel(typing_context, segments, count, step, before, probabilities, factors, out):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            segments, count, step, before, *rest = arguments
            segments, probabilities, factors, out = map(emit.pointer, (segments, *rest))
            scale = [emit.load(emit.moved(factors, SIDE * v), VECTOR, 4) for v in range(VECTORS)]
            pointers = [
                emit.moved(out, 4 * PANEL * row + SIDE * v)
                for row in range(rows)
                for v in range(VECTORS)
            ]
            sums = [
                builder.fmul(emit.load(pointer, VECTOR, 4), scale[at % VECTORS])
                for at, pointer in enumerate(pointers)
            ]

            add = _adding_to_panel(emit, rows, step)

            def walk(k, state):
                segment, *sums = state
                value, mixed, length = _fields(emit, segment, before, probabilities, 4 * PANEL)
                sums = emit.loop(length, 1, [value, mixed, *sums], add)[2:]
                return [emit.moved(segment, SEGMENT), *sums]

            state = [segments, *sums]
            _, *sums = emit.loop(count, 1, state, walk)
            for value, pointer in zip(sums, pointers, strict=True):
                emit.store(value, pointer)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return micro_kernel


def _adding_to_panel(emit, rows, step):
    """Return the body of the loop that adds values, `step` bytes apart, times probabilities."""

    def add(k, state):
        value, mixed, *sums = state
        right = [emit.load(emit.moved(mixed, SIDE * v), VECTOR, 4) for v in range(VECTORS)]
        for row in range(rows):
            left = emit.splat(emit.load(emit.moved(value, 4 * row), F32, 4))
            for v in range(VECTORS):
                at = VECTORS * row + v
                sums[at] = emit.multiply_add(left, right[v], sums[at])
        return [emit.moved(value, (step, 1)), emit.moved(mixed, 4 * PANEL), *sums]

    return add


@cache
def page_dots(keys: int, head_dim: int, dtype: str):
    """Intrinsic: the scores of one query with 1 or `WIDTH` keys, one behind the other.

    The numbers behind the last whole vector of a key are left out.

    Arguments: the addresses of the query, f32, of the first key, of type "f32", "bf16" or "f16",
    of the first of as many keys to prefetch, and of the scores.
    """
    size = bytes_of(dtype)

    @named_intrinsic(f"page_dots_{keys}_{head_dim}_{dtype}")
    def micro_kernel(typing_context, query, key, ahead, out):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            query, key, ahead, out = (emit.pointer(address) for address in arguments)
            whole = head_dim // WIDTH * WIDTH
            lines = iter(range(0, keys * head_dim * size, LINE))
            sums = [ZERO] * keys
            for d in range(0, whole, WIDTH):
                left = emit.load(emit.moved(query, 4 * d), VECTOR, 4)
                for row in range(keys):
                    pointer = emit.moved(key, size * (head_dim * row + d))
                    sums[row] = emit.multiply_add(left, emit.floats(pointer, dtype), sums[row])
                    # One line with each load: of longer bursts processors drop a part. 8 texts of
                    # 140 positions, 2 threads of a Zen 4: 431 us without, 293 in bursts, 243 so.
                    for line in islice(lines, 1):
                        emit.prefetch(emit.moved(ahead, line), near=2)
            total = _lane_sums(emit, sums)
            if keys == 1:
                total = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
            emit.store(total, out)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return micro_kernel


def _lane_sums(emit, rows):
    """Return a vector with the sum of each of the rows, its lanes added one after another."""
    b = emit.builder
    undefined = ir.Constant(VECTOR, ir.Undefined)
    lanes = transposed_lanes(b, [*rows, *[undefined] * (WIDTH - len(rows))])
    total = lanes[0]
    for lane in lanes[1:]:
        total = b.fadd(total, lane)
    return total


@cache
def page_values(vectors: int, row: int, dtype: str):
    """Intrinsic: scale `vectors` vectors of sums, and add the values times probabilities.

    Arguments: the address of the first segment and their number; of the first of as many segments
    whose values are prefetched; the bytes before the first number of a value; the address of the
    probabilities of the block, of the factor, of the sums. A value has `row` numbers.
    """
    size = bytes_of(dtype)

    @named_intrinsic(f"page_values_{vectors}_{row}_{dtype}")
    def micro_kernel(typing_context, segments, count, coming, before, probabilities, factor, out):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            segments, count, coming, before, *rest = arguments
            segments, coming, probabilities, factor, out = map(
                emit.pointer, (segments, coming, *rest)
            )
            scale = emit.splat(emit.load(factor, F32, 4))
            pointers = [emit.moved(out, SIDE * v) for v in range(vectors)]
            sums = [builder.fmul(emit.load(pointer, VECTOR, 4), scale) for pointer in pointers]

            def walk(k, state):
                segment, coming, *sums = state
                value, mixed, length = _fields(emit, segment, before, probabilities, 4)
                ahead, _, fetched = _fields(emit, coming, before, probabilities, 4)
                last = emit.moved(ahead, (builder.sub(fetched, number(1)), size * row))
                add = _adding(emit, vectors, row, dtype, last)
                sums = emit.loop(length, 1, [value, mixed, ahead, *sums], add)[3:]
                return [emit.moved(segment, SEGMENT), emit.moved(coming, SEGMENT), *sums]

            sums = emit.loop(count, 1, [segments, coming, *sums], walk)[2:]
            for value, pointer in zip(sums, pointers, strict=True):
                emit.store(value, pointer)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return micro_kernel


def _adding(emit, vectors, row, dtype, last):
    """Return the body of the loop that adds values times probabilities, `row` numbers apart.

    For each of them it prefetches one that is further ahead, at most the one at `last`.
    """
    builder, size = emit.builder, bytes_of(dtype)

    def add(k, state):
        value, mixed, ahead, *sums = state
        left = emit.splat(emit.load(mixed, F32, 4))
        for line in range(0, size * WIDTH * vectors, LINE):
            emit.prefetch(emit.moved(ahead, line), near=2)
        for v in range(vectors):
            right = emit.floats(emit.moved(value, size * WIDTH * v), dtype)
            sums[v] = emit.multiply_add(left, right, sums[v])
        before = builder.icmp_unsigned("<", *(builder.ptrtoint(x, I64) for x in (ahead, last)))
        ahead = builder.select(before, emit.moved(ahead, size * row), ahead)
        return [emit.moved(value, size * row), emit.moved(mixed, 4), ahead, *sums]

    return add


def _fields(emit, segment, before, probabilities, width):
    """Return pointers to the values and probabilities of a segment, and how many there are.

    `before` are the bytes before the first number of a value that is added, `width` those of the
    probabilities of a position.
    """
    value, position, length = (
        emit.load(emit.moved(segment, at), I64, 8) for at in (VALUES_AT, POSITION_AT, COUNT_AT)
    )
    value = emit.moved(emit.pointer(value), (before, 1))
    return value, emit.moved(probabilities, (position, width)), length
