"""Kernels of products with a table, whose rows are contiguous along k and are read in place.

The table is an embedding that is also the head: a weight too large to have twice. A sum is the same
bits for any number of rows, see `dots_ir`. The geometry is that of `gemm_geometry`; a tile has
`MOST_ROWS` rows of the left side at most, which are not packed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.inlining import named_intrinsic, register_jitable, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import fma, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import (
    FEATURES,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    bytes_of,
)
from gptrs_backend_numba.kernels.matmul.gemm import (
    FINISH,
    RN,
    TILES,
    K,
    M,
    N,
    block_of_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

# The inner loop of products with rows of a table, which are contiguous along k, in LLVM code.
#
# A sum has as many parts as a vector register has lanes, which are added at the end, in one order:
# it is the same whatever rows and columns are computed with it. Nothing of the table is moved
# within a register, so that one row takes no longer than reading the table.


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
                    address = emit.moved(emit.pointer(sums), (sums_step, row), 4 * column)
                    emit.store(_totals(emit, found[at : at + _LANES]), address)
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
                offsets = [(row, 4 * WIDTH * j) for row in range(rows) for j in range(COLUMNS)]
                starts = [
                    emit.load(emit.moved(emit.pointer(start), (start_step, row), at), VECTOR, 4)
                    for row, at in offsets
                ]
                found = _sums(emit, operands, rows, COLUMNS, starts, count, dtype)
                for value, (row, at) in zip(found, offsets, strict=True):
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
            address = emit.moved(emit.pointer(sums), (builder.mul(row, sums_step), 1))
            emit.store(_totals(emit, found), address)
            return []

        emit.loop(rows, 1, [], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _sums(emit, operands, rows, columns, starts, count, dtype):
    """Emit the loop over k for `rows` x `columns` sums; return their vectors."""
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


_ROW = PANEL + COLUMNS_OF_ONE
"""Sums of a row in memory: the last block of a panel may begin before it."""
_PARTS = 4 * WIDTH * COLUMNS
"""Bytes of the parts of the sums of a block, of one row."""
_NEAR_BYTES = 16 << 10 if WIDTH == 16 else 200 << 10
"""Bytes of the rows of a group of tiles, or of a block of k of a tile: with AVX-512 they stay in
the L1 cache, 1.1 times as fast for 32 rows of f32 and 1.4 times for 15; with AVX2 that is 0.9."""


@kernel_part
def add_rest(x, x_step, table, step, sums, height, columns, begin, k, *, MEMORY, load):
    """Add the products from `begin` on to the sums of `height` rows and some columns."""
    for i in range(height):
        X, C = pointer(x + i * x_step, np.float32), pointer(sums + 4 * _ROW * i, np.float32)
        for j in range(columns):
            Y = pointer(table + j * step, MEMORY)
            total = C[j]
            for p in range(begin, k):
                total = fma(X[p], load(Y[p]), total)
            C[j] = total


@register_jitable
def padded(count):
    """Return `count`, rounded up to f32 of whole cache lines."""
    return (4 * count + LINE - 1) // LINE * (LINE // 4)


@kernel_part
def copy_block(source, rows, step, length, target):
    """Copy `length` f32 of rows that begin `step` bytes apart to whole cache lines."""
    for i in range(rows):
        X, Y = pointer(source + i * step, np.float32), pointer(target, np.float32)
        for p in range(length):
            Y[i * padded(length) + p] = X[p]


@kernel_part
def fill_zeros(address, nbytes):
    """Put zeros to f32."""
    Z = pointer(address, np.float32)
    for i in range(nbytes // 4):
        Z[i] = 0.0


@kernel_part
def prefetch_steps(tiles, step, columns, size, length, k):
    """Return the bytes between the lines that a tile prefetches at a time, and those to move on.

    A lone tile prefetches whole lines, of short rows of the table one after another; of several
    tiles each takes a share, so that they do not wait for memory.
    """
    apart, moved = step, np.int64(LINE)
    if tiles > 1:
        moved = LINE // tiles + 1
    elif size < 4 and length == k:
        apart, moved = np.int64(LINE), LINE * columns
    return apart, moved


@kernel_part
def lone_row(G, geometry, x, rhs, out, row, step, first_panel, last_panel,
             *, SIZE, STEPS, dot_block, add_rest):  # fmt: skip
    """Compute one row of the result, some panels of it."""
    n, k, columns = G[N], G[K], np.int64(COLUMNS_OF_ONE)
    even = k - k % STEPS
    held = np.empty(_ROW + COLUMNS_OF_ONE, np.float32)
    sums = np.int64(held.ctypes.data) + 4 * COLUMNS_OF_ONE
    apart, moved = prefetch_steps(np.int64(1), step, columns, SIZE, k, k)
    for panel in range(first_panel, last_panel):
        width = min(PANEL, n - panel * PANEL)
        for j in range(0, width, columns):
            # The last columns of all are computed again rather than any beyond the end.
            at = min(j, n - columns - panel * PANEL)
            source = rhs + (panel * PANEL + at) * step
            # Rows of the table 8 ahead are better than 16, by 6 %.
            dot_block(1, x, 4 * k, source, step, source + columns * step, apart, moved,
                      sums + 4 * at, 4 * _ROW, even)  # fmt: skip
            if even < k:
                add_rest(x, 4 * k, source, step, sums + 4 * at, 1, columns, even, k)
        call_compiled(G[FINISH], sums, _ROW, out, row, panel * PANEL, 1, width, geometry, 0)
    keep_alive(held)
    return 0


@kernel_part
def add_block(
    G, left, rhs, step, panel, first_tile, last_tile, shares, begin, length, parts, sums,
    *, SIZE, STEPS, dot_block_part, add_rest
):  # fmt: skip
    """Add a block of k to the sums of a group of tiles and of a panel.

    `left` has this block of the rows, `parts` a vector of each sum. Those of the last block become
    `sums`. `shares`: the tiles that prefetch the table, which of them is the first of the group,
    and how many rows ahead.
    """
    m, n, k = G[M], G[N], G[K]
    columns, even = np.int64(COLUMNS), length - length % STEPS
    whole, taller = m // G[TILES], m % G[TILES]
    sharing, share, ahead = shares
    apart, moved = prefetch_steps(sharing, step, columns, SIZE, length, k)
    address, left_step = parts, 4 * padded(length)
    for j in range(0, min(PANEL, n - panel * PANEL), columns):
        # The last columns of all are computed again rather than any beyond the end.
        at = min(j, n - columns - panel * PANEL)
        source = rhs + (panel * PANEL + at) * step + SIZE * begin
        L, total = left, sums + 4 * at
        prefetch = source + ahead * step + share * (even // STEPS * moved)
        for tile in range(first_tile, last_tile):
            height = whole + (1 if tile < taller else 0)
            start, start_step = address, np.int64(_PARTS)
            if begin == 0:
                start, start_step = parts - _PARTS, np.int64(0)  # zeros
            dot_block_part(height, L, left_step, source, step, prefetch, apart, moved,
                           start, start_step, address, _PARTS, even)  # fmt: skip
            if begin + length >= k:
                add_lanes(address, _PARTS, total, 4 * _ROW, height)
                if even < length:
                    add_rest(L, left_step, source, step, total, height, columns, even, length)
            L += height * left_step
            address += height * _PARTS
            total += 4 * height * _ROW
            prefetch += even // STEPS * moved


@register_jitable
def rows_of_tiles(G, first_tile, last_tile):
    """Return the number of rows of some tiles."""
    whole, taller = G[M] // G[TILES], G[M] % G[TILES]
    return (last_tile - first_tile) * whole + min(last_tile, taller) - min(first_tile, taller)


@kernel_part
def several_rows(
    G, geometry, left, rhs, out, first_row, step, tile_range, panels, *, add_block
):  # fmt: skip
    """Compute a block of rows and columns of the result, of two rows or more.

    A group of tiles, or a block of k of it, stays in the L1 cache while the rows of a panel of the
    table pass by, which stay in the L2 cache while all groups do.
    """
    n, k = G[N], G[K]
    first_tile, last_tile = tile_range
    first_panel, last_panel = panels
    rows, tiles = rows_of_tiles(G, first_tile, last_tile), last_tile - first_tile
    tile_bytes = 4 * k * rows_of_tiles(G, np.int64(0), np.int64(1))
    group = min(max(_NEAR_BYTES // tile_bytes, np.int64(1)), tiles)
    blocks = (group * tile_bytes + _NEAR_BYTES - 1) // _NEAR_BYTES
    block = ((k + blocks - 1) // blocks + LINE - 1) // LINE * LINE  # whole steps
    sums_bytes = 4 * _ROW * rows + LINE
    parts_bytes = _PARTS * (1 + rows_of_tiles(G, np.int64(0), group) * (PANEL // COLUMNS)) + LINE
    held = np.empty(sums_bytes + parts_bytes + 4 * rows * padded(k) + 2 * LINE, np.uint8)
    sums = np.int64(held.ctypes.data) + 4 * COLUMNS_OF_ONE
    parts = (sums + sums_bytes) // LINE * LINE + _PARTS
    fill_zeros(parts - _PARTS, _PARTS)
    copy = (parts - _PARTS + parts_bytes) // LINE * LINE
    if WIDTH < 16:
        # Half a cache line beside the table: AMD's L1 cache loads two vectors of half a line at a
        # time from different halves of lines only, 1.3 times as fast.
        copy += (rhs + LINE // 2) % LINE
    ahead = np.int64(PANEL if tiles > group else COLUMNS_OF_ONE)
    for panel in range(first_panel - 1, last_panel):
        row = np.int64(0)
        for tile in range(first_tile, last_tile, group):
            last = min(tile + group, last_tile)
            height = rows_of_tiles(G, tile, last)
            for begin in range(0, k, block):
                length = min(block, k - begin)
                L = copy + 4 * (row * padded(k) + begin * height)
                if panel < first_panel:
                    copy_block(left + 4 * (row * k + begin), height, 4 * k, length, L)
                else:
                    shares = (tiles, tile - first_tile, ahead)
                    add_block(G, L, rhs, step, panel, tile, last, shares, begin, length, parts,
                              sums + 4 * row * _ROW)  # fmt: skip
            row += height
        if panel >= first_panel:
            call_compiled(G[FINISH], sums, _ROW, out, first_row, panel * PANEL, rows,
                          min(PANEL, n - panel * PANEL), geometry, 0)  # fmt: skip
    keep_alive(held)
    return 0


@kernel
def dots_task(lhs, rhs, out, geometry, task, *, SIZE, lone_row, several_rows):
    """Compute a block of rows and columns of a product with a table of elements of `SIZE` bytes.

    The left side is f32, with contiguous rows.
    """
    G = pointer(geometry, np.int64)
    step, count = SIZE * G[RN], (G[N] - 1) // PANEL + 1
    _, first_tile, last_tile, first_panel, last_panel = block_of_task(G, task, count)
    row = rows_of_tiles(G, np.int64(0), first_tile)
    left = lhs + 4 * row * G[K]
    if G[M] == 1:
        lone_row(G, geometry, left, rhs, out, row, step, first_panel, last_panel)
    else:
        several_rows(G, geometry, left, rhs, out, row, step, (first_tile, last_tile),
                     (first_panel, last_panel))  # fmt: skip
    return 0


def table_products(dtype: DType) -> SpecializedKernel:
    """Return the tasks of a product with a table of at least `COLUMNS_OF_ONE` rows, RK = 1."""
    size = dtype.itemsize
    rest = add_rest.specialize(MEMORY=memory_of(dtype), load=load_of(dtype))
    shared = {"SIZE": size, "STEPS": steps_of(size), "add_rest": rest}
    block = add_block.specialize(**shared, dot_block_part=dot_block_part(str(dtype)))
    return dots_task.specialize(
        SIZE=size,
        lone_row=lone_row.specialize(**shared, dot_block=dot_block(str(dtype))),
        several_rows=several_rows.specialize(add_block=block),
    )
