"""Kernels of products with a table, whose rows are contiguous along k and are read in place.

The table is an embedding that is also the head: a weight too large to have twice. A sum is the same
bits for any number of rows, see `dots_ir`. The geometry is that of `gemm_geometry`; a tile has
`MOST_ROWS` rows of the left side at most, which are not packed.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import fma, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.matmul.dots_ir import (
    COLUMNS,
    COLUMNS_OF_ONE,
    LINE,
    add_lanes,
    dot_block,
    dot_block_part,
    steps_of,
)
from gptrs_backend_numba.kernels.matmul.gemm import block_of_task
from gptrs_backend_numba.kernels.matmul.gemm_geometry import (
    FINISH,
    RN,
    TILES,
    K,
    M,
    N,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

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
    """Return the f32 of whole cache lines that hold so many."""
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
    place, left_step = parts, 4 * padded(length)
    for j in range(0, min(PANEL, n - panel * PANEL), columns):
        # The last columns of all are computed again rather than any beyond the end.
        at = min(j, n - columns - panel * PANEL)
        source = rhs + (panel * PANEL + at) * step + SIZE * begin
        L, total = left, sums + 4 * at
        prefetch = source + ahead * step + share * (even // STEPS * moved)
        for tile in range(first_tile, last_tile):
            height = whole + (1 if tile < taller else 0)
            start, start_step = place, np.int64(_PARTS)
            if begin == 0:
                start, start_step = parts - _PARTS, np.int64(0)  # zeros
            dot_block_part(height, L, left_step, source, step, prefetch, apart, moved,
                           start, start_step, place, _PARTS, even)  # fmt: skip
            if begin + length >= k:
                add_lanes(place, _PARTS, total, 4 * _ROW, height)
                if even < length:
                    add_rest(L, left_step, source, step, total, height, columns, even, length)
            L += height * left_step
            place += height * _PARTS
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
