"""Kernel of normalizations over positions and groups of channels, which lie side by side."""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, pointer, square_root

ROWS = 32
"""Positions of a block: with the columns of a task they stay in the L1 cache, as it is read twice.

The rounding error of so short a sum is a unit.
"""
_POWER = np.float32(1.0 / ROWS)


@kernel_part
def block_sums(X, first, step, rows, width, S, D, Q):
    """Write the means of columns of a block to S, then the sums of what is left, and of squares.

    The means are rounded: D says by how much, and the squares are exact for what is left.
    """
    for j in range(width):
        S[j] = np.float32(0.0)
    for r in range(rows):
        for j in range(width):
            S[j] += X[first + r * step + j] * _POWER  # scaled, so that no sum overflows
    factor = divide(np.float32(ROWS), convert(rows, np.float32))
    for j in range(width):
        S[j] *= factor
        D[j] = np.float32(0.0)
        Q[j] = np.float32(0.0)
    for r in range(rows):
        for j in range(width):
            apart = X[first + r * step + j] - S[j]
            D[j] += apart
            Q[j] += apart * apart


@kernel_part
def join_block(S, D, Q, before, rows, width, M, V):
    """Add a block to the means M and the sums of squared distances V of the rows `before` it.

    In f64, by the formula of Chan et al. (1979).
    """
    count = convert(rows, np.float64)
    share = divide(count, convert(before + rows, np.float64))
    weight = share * convert(before, np.float64)
    for j in range(width):
        rest = divide(convert(D[j], np.float64), count)
        apart = convert(S[j], np.float64) + rest - M[j]
        own = convert(Q[j], np.float64) - rest * convert(D[j], np.float64)
        if own < 0.0:  # of equal elements, by rounding
            own = 0.0
        M[j] += apart * share
        V[j] += own + apart * apart * weight


@kernel_part
def join_columns(M, V, rows, each, width, epsilon, S, D, Q):
    """Write the rounded mean of each group of columns to S, what it lacks to D, a scale to Q."""
    count = convert(each, np.float64)
    for first in range(0, width, each):
        mean = 0.0
        for j in range(first, first + each):
            mean += M[j]
        mean = divide(mean, count)
        total = 0.0
        for j in range(first, first + each):
            apart = M[j] - mean
            total += V[j] + convert(rows, np.float64) * (apart * apart)
        square = convert(divide(total, count * convert(rows, np.float64)), np.float32)
        scale = divide(np.float32(1.0), square_root(square + epsilon))
        rounded = convert(mean, np.float32)
        for j in range(first, first + each):
            S[j] = rounded
            D[j] = convert(mean - convert(rounded, np.float64), np.float32)
            Q[j] = scale


@kernel
def standardize_task(x, unused, out, geometry, task, *, block_sums, join_block, join_columns):
    """Normalize some groups of channels of an image: less their mean, over their deviation, in f32.

    Geometry: positions and channels of an image, channels of a group, of a task; tasks of an image;
    the bits of epsilon as f64.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, np.float32), pointer(out, np.float32)
    rows, channels, each, most, tasks = G[0], G[1], G[2], G[3], G[4]
    epsilon = convert(pointer(geometry + 40, np.float64)[0], np.float32)
    image = task // tasks
    begin = (task - image * tasks) * most
    width = min(most, channels - begin)
    first = image * rows * channels + begin
    short, long = np.empty(3 * width, np.float32), np.zeros(2 * width, np.float64)
    at, long_at = short.ctypes.data, long.ctypes.data
    S, D, Q = (
        pointer(at, np.float32),
        pointer(at + 4 * width, np.float32),
        pointer(at + 8 * width, np.float32),
    )
    M, V = pointer(long_at, np.float64), pointer(long_at + 8 * width, np.float64)
    for row in range(0, rows, ROWS):
        count = min(rows - row, ROWS)
        block_sums(X, first + row * channels, channels, count, width, S, D, Q)
        join_block(S, D, Q, row, count, width, M, V)
    join_columns(M, V, rows, each, width, epsilon, S, D, Q)
    for row in range(rows):
        place = first + row * channels
        for j in range(width):
            O[place + j] = (X[place + j] - S[j] - D[j]) * Q[j]
    keep_alive(short)
    keep_alive(long)
    return 0


def standardize() -> SpecializedKernel:
    """Return the kernel."""
    return standardize_task.specialize(
        block_sums=block_sums.specialize(),
        join_block=join_block.specialize(),
        join_columns=join_columns.specialize(),
    )
