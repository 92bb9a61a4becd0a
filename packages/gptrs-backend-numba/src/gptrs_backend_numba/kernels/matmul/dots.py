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
def add_rest(x, table, step, sums, height, columns, begin, k, *, MEMORY, load):
    """Add the products from `begin` on to the sums of `height` rows and some columns."""
    for i in range(height):
        X, C = pointer(x + 4 * i * k, np.float32), pointer(sums + 4 * _ROW * i, np.float32)
        for j in range(columns):
            Y = pointer(table + j * step, MEMORY)
            total = C[j]
            for p in range(begin, k):
                total = fma(X[p], load(Y[p]), total)
            C[j] = total


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
    held = np.empty(rows * _ROW, np.float32)
    sums = np.int64(held.ctypes.data) + 4 * COLUMNS_OF_ONE
    for panel in range(first_panel, last_panel):
        width = min(PANEL, n - panel * PANEL)
        for j in range(0, width, columns):
            # The last columns of all are computed again rather than any beyond the end.
            at = min(j, n - columns - panel * PANEL)
            source = rhs + (panel * PANEL + at) * step
            L, place = lhs + 4 * first_row * k, sums + 4 * at
            for tile in range(first_tile, last_tile):
                height = whole + (1 if tile < taller else 0)
                # Each tile prefetches its share of the columns that come soon: 8 ahead are better
                # than 16, by 6 % for one row of f32.
                mine = tile - first_tile == j * (last_tile - first_tile) // PANEL
                prefetch = source + COLUMNS_OF_ONE * step if mine else source
                dot_block(height, L, 4 * k, source, step, prefetch, place, 4 * _ROW, even)
                if even < k:
                    add_rest(L, source, step, place, height, columns, even, k)
                L += 4 * height * k
                place += 4 * height * _ROW
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
