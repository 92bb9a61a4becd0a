"""Kernel of `grouped_linear`: rows are gathered by their matrix, which is read once for all.

A task computes some columns of all rows. It goes through the matrices that a row has chosen; their
rows stay in the L1 cache while the rows of x pass by, see `dots_ir`.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.matmul.dots import add_rest
from gptrs_backend_numba.kernels.matmul.dots_ir import (
    COLUMNS,
    COLUMNS_OF_ONE,
    LINE,
    MOST_ROWS,
    dot_block,
    steps_of,
)

FIELDS = ("groups", "rows", "inputs", "outputs", "matrices", "block", "unused")
"""The geometry: the address of the groups, sizes, and columns of a task."""


@kernel
def grouped_task(x, weight, out, geometry, task, *, SIZE, STEPS, dot_block, add_rest):
    """Compute a block of columns of all rows; the groups are known to be in range."""
    G = pointer(geometry, np.int64)
    I, X, O = pointer(G[0], np.int64), pointer(x, np.float32), pointer(out, np.float32)
    rows, k, n, matrices, block = G[1], G[2], G[3], G[4], G[5]
    begin = task * block
    end = min(n, begin + block)
    even, step = k - k % STEPS, SIZE * k
    left_step = (4 * k + LINE - 1) // LINE * LINE
    held = np.empty(MOST_ROWS * (left_step // 4 + COLUMNS_OF_ONE) + LINE, np.float32)
    sums = np.int64(held.ctypes.data)
    left = (sums + 4 * MOST_ROWS * COLUMNS_OF_ONE + LINE - 1) // LINE * LINE
    S = pointer(sums, np.float32)
    chosen = np.empty(MOST_ROWS, np.int64)
    for matrix in range(matrices):
        row = np.int64(0)
        while row < rows:
            height = np.int64(0)
            while row < rows and height < MOST_ROWS:
                if I[row] == matrix:
                    L = pointer(left + height * left_step, np.float32)
                    for p in range(k):
                        L[p] = X[row * k + p]
                    chosen[height] = row
                    height += 1
                row += 1
            if height == 0:
                continue
            columns = COLUMNS if height > 1 else COLUMNS_OF_ONE
            for j in range(begin, end, columns):
                # The last columns are computed again rather than any beyond the end.
                at = min(j, n - columns)
                source = weight + (matrix * n + at) * step
                dot_block(height, left, left_step, source, step, source + columns * step, step,
                          np.int64(LINE), sums, 4 * COLUMNS_OF_ONE, even)  # fmt: skip
                for i in range(height):
                    if even == 0:
                        for c in range(columns):
                            S[i * COLUMNS_OF_ONE + c] = np.float32(0.0)
                if even < k:
                    for i in range(height):
                        add_rest(left + i * left_step, left_step, source, step,
                                 sums + 4 * i * COLUMNS_OF_ONE, 1, columns, even, k)  # fmt: skip
                for i in range(height):
                    for c in range(columns):
                        O[chosen[i] * n + at + c] = S[i * COLUMNS_OF_ONE + c]
    keep_alive(held)
    keep_alive(chosen)
    return 0


@kernel
def run_grouped(state, function, count, threads, x, weight, groups, out, geometry):
    """Run all tasks; return 1, before any, when a group is out of range."""
    G = pointer(geometry, np.int64)
    G[0] = groups
    I = pointer(groups, np.int64)
    for row in range(G[1]):
        if I[row] < 0 or I[row] >= G[4]:
            return 1
    share_tasks(state, function, count, threads, x, weight, out, geometry)
    return 0


def grouped(dtype: DType) -> SpecializedKernel:
    """Return the task for f32 rows and matrices of `dtype`, with 8 columns at least."""
    return grouped_task.specialize(
        SIZE=dtype.itemsize,
        STEPS=steps_of(dtype.itemsize),
        dot_block=dot_block(str(dtype)),
        add_rest=add_rest.specialize(MEMORY=memory_of(dtype), load=load_of(dtype)),
    )
