"""The inner loop of products with rows of a table, which are contiguous along k, in LLVM code.

A sum has as many parts as a vector register has lanes, which are added at the end, in one order: it
is the same whatever rows and columns are computed with it. Nothing of the table is moved within a
register, so that one row takes no longer than reading the table.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import (
    FEATURES,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
)

COLUMNS = 4
"""Rows of the table, columns of the result, in a block."""
COLUMNS_OF_ONE = 8
"""The same for one row: with 4 its sums would wait for themselves, 1.15 times as long."""
MOST_ROWS = 5 if "avx512f" in FEATURES else 6 if "neon" in FEATURES else 3
"""Rows of the largest block: its sums fill three quarters of the 32 or 16 registers. With AVX-512
LLVM would keep some of 24 sums in memory: of 32 rows of f32, half as fast; of bf16 and f16, where
it does so for Intel's processors, 24 rows are 1.1 times as fast with 20, on a Sapphire Rapids."""
LINE = 64
"""Bytes of a cache line."""
_LANES = 4
"""Floats in 128 bits, within which vectors are shuffled fastest."""


def steps_of(size: int) -> int:
    """Return the values of k in a step of `dot_block` on elements of `size` bytes: a cache line."""
    return max(LINE // size, WIDTH)


@cache
def dot_block(dtype: str):
    """Intrinsic: 1 to `MOST_ROWS` rows times `COLUMNS` rows of a table, all contiguous.

    One row meets `COLUMNS_OF_ONE` rows of the table.

    Arguments: the number of rows; the address of the first, f32, and the bytes from one to the
    next; the same of the table, "f32", "bf16" or "f16"; the address to prefetch, the bytes from
    there to another one for each row of the table, and those to move on with each cache line of k;
    the address of the sums, f32, and the bytes from one row of them to the next; the count, a
    multiple of `steps_of`.
    """

    @named_intrinsic(f"dot_block_{dtype}")
    def micro_kernel(
        typing_context, rows, x, x_step, table, step, prefetch, apart, moved, sums, sums_step, count
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *operands, sums, sums_step, count = arguments
            for rows in emit.one_of(wanted, range(1, MOST_ROWS + 1)):
                columns = COLUMNS if rows > 1 else COLUMNS_OF_ONE
                starts = [ZERO] * (rows * columns)
                found = _sums(emit, operands, rows, columns, starts, count, dtype)
                for at in range(0, len(found), _LANES):
                    row, column = divmod(at, columns)
                    place = emit.moved(emit.pointer(sums), (sums_step, row), 4 * column)
                    emit.store(_totals(emit, found[at : at + _LANES]), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 11), generate

    return micro_kernel


@cache
def dot_block_part(dtype: str):
    """Intrinsic: a part of `dot_block` for 2 rows and more, whose sums stay apart, lane by lane.

    Arguments: as those of `dot_block`, but for the sums: the address of vectors to begin with, and
    the bytes from those of one row to the next; the same of the vectors to write; the count. The
    vectors of a row, one for each row of the table, are next to one another.
    """

    @named_intrinsic(f"dot_block_part_{dtype}")
    def micro_kernel(
        typing_context, rows, x, x_step, table, step, prefetch, apart, moved, start, start_step,
        sums, sums_step, count
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *operands, start, start_step, sums, sums_step, count = arguments
            for rows in emit.one_of(wanted, range(2, MOST_ROWS + 1)):
                places = [(row, 4 * WIDTH * j) for row in range(rows) for j in range(COLUMNS)]
                starts = [
                    emit.load(emit.moved(emit.pointer(start), (start_step, row), at), VECTOR, 4)
                    for row, at in places
                ]
                found = _sums(emit, operands, rows, COLUMNS, starts, count, dtype)
                for value, (row, at) in zip(found, places, strict=True):
                    emit.store(value, emit.moved(emit.pointer(sums), (sums_step, row), at))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13), generate

    return micro_kernel


@named_intrinsic("add_lanes")
def add_lanes(typing_context, vectors, vectors_step, sums, sums_step, rows):
    """Intrinsic: add the lanes of `COLUMNS` vectors of each row, as `dot_block` does.

    Arguments: the address of the vectors, the bytes from those of one row to the next; the same of
    the sums, f32; the number of rows.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        vectors, vectors_step, sums, sums_step, rows = arguments

        def body(row, _):
            first = emit.moved(emit.pointer(vectors), (builder.mul(row, vectors_step), 1))
            found = [emit.load(emit.moved(first, 4 * WIDTH * j), VECTOR, 4) for j in range(COLUMNS)]
            place = emit.moved(emit.pointer(sums), (builder.mul(row, sums_step), 1))
            emit.store(_totals(emit, found), place)
            return []

        emit.loop(rows, 1, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _sums(emit, operands, rows, columns, starts, count, dtype):
    """Emit the loop over k of so many rows and columns; return the vectors of their sums."""
    x, x_step, table, step, prefetch, *prefetch_steps = operands
    lines = [emit.moved(emit.pointer(x), (x_step, row)) for row in range(rows)]
    table = [emit.moved(emit.pointer(table), (step, column)) for column in range(columns)]
    body = _products(emit, lines, table, prefetch_steps, dtype)
    steps = steps_of(bytes_of(dtype))
    return emit.loop(count, steps, [emit.pointer(prefetch), *starts], body)[1:]


def _products(emit, lines, table, prefetch_steps, dtype):
    """Return the body of the loop over k: a cache line of each row of the table."""
    size = bytes_of(dtype)
    apart, moved = prefetch_steps

    def body(k, state):
        prefetch, *sums = state
        for column in range(len(table)):
            emit.prefetch(emit.moved(prefetch, (apart, column)), near=2)
        for first in range(0, steps_of(size), WIDTH):
            left = [emit.load(emit.moved(line, (k, 4), 4 * first), VECTOR, 4) for line in lines]
            for j, row in enumerate(table):
                right = emit.floats(emit.moved(row, (k, size), size * first), dtype)
                for i, value in enumerate(left):
                    at = i * len(table) + j
                    sums[at] = emit.multiply_add(value, right, sums[at])
            if dtype == "bf16" and MOST_ROWS == 3:
                # One of the 16 registers is left for what is widened: LLVM would take more.
                emit.keep_order()
        return [emit.moved(prefetch, (moved, 1)), *sums]

    return body


def _totals(emit, sums):
    """Return the sums of the lanes of four vectors as one vector, added in one order."""
    b = emit.builder
    for run in (1, 2):
        sums = [
            b.fadd(*(b.shuffle_vector(x, y, _halves(half, run)) for half in range(2)))
            for x, y in zip(sums[::2], sums[1::2], strict=True)
        ]
    (total,) = sums
    while total.type.count > _LANES:
        width = total.type.count // 2
        low, high = (
            b.shuffle_vector(total, total, ir.VectorType(I32, width)([*range(at, at + width)]))
            for at in (0, width)
        )
        total = b.fadd(low, high)
    return total


def _halves(half, run):
    """Return the mask of one half of each 128 bits of two vectors, in turns of `run` lanes."""
    lanes = []
    for lane in range(2 * half, WIDTH, _LANES):
        for i in range(0, 2, run):
            lanes += [*range(lane + i, lane + i + run)]
            lanes += [*range(WIDTH + lane + i, WIDTH + lane + i + run)]
    return ir.VectorType(I32, WIDTH)(lanes)
