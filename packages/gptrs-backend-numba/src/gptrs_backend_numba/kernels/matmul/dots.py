"""Kernels of products with a table, whose rows are contiguous along k and are read in place.

The table is an embedding that is also the head: a weight too large to have twice. A sum is the same
bits for any number of rows, see `dots_ir`. The geometry is that of `gemm_geometry`; a tile has
`MOST_ROWS` rows of the left side at most, which are not packed.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import fma, keep_alive, pointer
from gptrs_backend_numba.kernels.matmul.dots_ir import (
    COLUMNS,
    COLUMNS_OF_ONE,
    LINE,
    dot_block,
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


@kernel_part
def copy_rows(source, rows, k, target, step):
    """Copy contiguous rows of `k` f32 to rows that begin `step` bytes apart."""
    X = pointer(source, np.float32)
    for i in range(rows):
        Y = pointer(target + i * step, np.float32)
        for p in range(k):
            Y[p] = X[i * k + p]


@kernel_part
def prefetch_steps(tiles, step, columns, k, size, steps):
    """Return the bytes between the lines that a tile prefetches at a time, and those to move on.

    A lone tile prefetches whole lines, of short rows of the table one after another; of several
    tiles each takes a share, so that they do not wait for memory.
    """
    apart, moved = (step, np.int64(LINE)) if size == 4 else (np.int64(LINE), LINE * columns)
    if tiles > 1:
        apart, moved = np.int64(0), (columns * step * steps) // (tiles * k) + 1
    return apart, moved


@kernel
def dots_task(lhs, rhs, out, geometry, task, *, SIZE, STEPS, dot_block, add_rest):
    """Compute a block of rows and columns of a product with a table of elements of `SIZE` bytes.

    The left side is f32, with contiguous rows. All rows of the task pass by a few columns, rows of
    the table, which stay in the L1 cache meanwhile.
    """
    G = pointer(geometry, np.int64)
    m, n, k, step = G[M], G[N], G[K], SIZE * G[RN]
    _, first_tile, last_tile, first_panel, last_panel = block_of_task(G, task, (n - 1) // PANEL + 1)
    whole, taller = m // G[TILES], m % G[TILES]
    first_row = first_tile * whole + min(first_tile, taller)
    rows = last_tile * whole + min(last_tile, taller) - first_row
    columns, even = COLUMNS if m > 1 else COLUMNS_OF_ONE, k - k % STEPS
    left, left_step = lhs + 4 * first_row * k, 4 * k
    copied = k + LINE // 4 if m > 1 else np.int64(0)
    held = np.empty(rows * (_ROW + copied) + LINE, np.float32)
    sums = np.int64(held.ctypes.data) + 4 * COLUMNS_OF_ONE
    if m > 1:
        # The copy lies half a cache line beside the table: AMD's L1 cache loads two vectors at a
        # time from different halves of lines only, 1.3 times as fast.
        left_step = (4 * k + LINE - 1) // LINE * LINE
        copy = (sums + 4 * _ROW * rows + LINE - 1) // LINE * LINE + (rhs + LINE // 2) % LINE
        copy_rows(left, rows, k, copy, left_step)
        left = copy
    apart, moved = prefetch_steps(last_tile - first_tile, step, columns, k, SIZE, STEPS)
    for panel in range(first_panel, last_panel):
        width = min(PANEL, n - panel * PANEL)
        for j in range(0, width, columns):
            # The last columns of all are computed again rather than any beyond the end.
            at = min(j, n - columns - panel * PANEL)
            source = rhs + (panel * PANEL + at) * step
            # Rows of the table 8 ahead are better than 16, by 6 % for one row of f32.
            L, place, prefetch = left, sums + 4 * at, source + COLUMNS_OF_ONE * step
            for tile in range(first_tile, last_tile):
                height = whole + (1 if tile < taller else 0)
                dot_block(height, L, left_step, source, step, prefetch, apart, moved,
                          place, 4 * _ROW, even)  # fmt: skip
                if even < k:
                    add_rest(L, left_step, source, step, place, height, columns, even, k)
                L += height * left_step
                place += 4 * height * _ROW
                prefetch += even // STEPS * moved
        call_compiled(G[FINISH], sums, _ROW, out, first_row, panel * PANEL, rows, width,
                      geometry, 0)  # fmt: skip
    keep_alive(held)
    return 0


def table_products(dtype: DType) -> SpecializedKernel:
    """Return the tasks of a product with a table of at least `COLUMNS_OF_ONE` rows, RK = 1."""
    return dots_task.specialize(
        SIZE=dtype.itemsize,
        STEPS=steps_of(dtype.itemsize),
        dot_block=dot_block(str(dtype)),
        add_rest=add_rest.specialize(MEMORY=memory_of(dtype), load=load_of(dtype)),
    )
