"""Kernels that read or write at positions given by a tensor of int64.

They move elements without looking at them, so there is one for each width in bytes.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.elements import bits_of_width
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import offset, pointer


@kernel
def count_up(out, geometry):
    """Write 0, 1, .. as int64. Geometry: how many."""
    O = pointer(out, np.int64)
    for i in range(pointer(geometry, np.int64)[0]):
        O[i] = i
    return 0


@kernel
def take_kernel(x, indices, out, geometry, *, TYPE):
    """Copy rows by number; return 1, before any is read, when an index is out of range.

    Geometry: number of indices, of rows of `x`, stride between rows; then what a row consists of:
    number of runs, of axes besides the run, length and stride of a run; (size, stride) of each of
    these axes.
    """
    G = pointer(geometry, np.int64)
    X, I, O = pointer(x, TYPE), pointer(indices, np.int64), pointer(out, TYPE)
    count, limit, row_stride, outer, rank, n, stride = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    o = np.int64(0)
    for i in range(count):
        for r in range(outer):
            first = I[i] * row_stride + offset(G, 7, rank, r)
            if stride == 1:  # a loop of its own, so that it vectorizes
                for j in range(n):
                    O[o + j] = X[first + j]
            else:
                for j in range(n):
                    O[o + j] = X[first + j * stride]
            o += n
    return 0


@kernel
def gather_kernel(x, indices, out, geometry, *, TYPE):
    """Copy elements by index along one axis; return 1 like `take` when one is out of range.

    Geometry: number of indices, size and stride of the axis, number of axes; (size, stride) of
    each axis, 0 as the stride of the one that the indices replace.
    """
    G = pointer(geometry, np.int64)
    X, I, O = pointer(x, TYPE), pointer(indices, np.int64), pointer(out, TYPE)
    count, limit, axis_stride, rank = G[0], G[1], G[2], G[3]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    for i in range(count):
        O[i] = X[offset(G, 4, rank, i) + I[i] * axis_stride]
    return 0


@kernel
def move_kernel(source, starts, target, geometry, *, TYPE, INTO):
    """Copy a block into (`INTO`) or out of a larger tensor at clamped starts, one an axis.

    Geometry: number of axes (at least 1), of runs, length of a run; (greatest start, stride) of
    each axis of the larger tensor; strides of the run in source and target; (size, stride) of each
    axis but the last in the source, then in the target.
    """
    G = pointer(geometry, np.int64)
    S, T, I = pointer(source, TYPE), pointer(target, TYPE), pointer(starts, np.int64)
    rank, outer, n = G[0], G[1], G[2]
    shift = np.int64(0)
    for axis in range(rank):
        shift += min(max(I[axis], 0), G[3 + 2 * axis]) * G[4 + 2 * axis]
    at = 3 + 2 * rank
    s_stride, t_stride = G[at], G[at + 1]
    at += 2
    for r in range(outer):
        s = offset(G, at, rank - 1, r)
        t = offset(G, at + 2 * (rank - 1), rank - 1, r)
        if INTO:
            t = shift + t
        else:
            s = shift + s
        if s_stride == 1 and t_stride == 1:
            for j in range(n):
                T[t + j] = S[s + j]
        else:
            for j in range(n):
                T[t + j * t_stride] = S[s + j * s_stride]
    return 0


def take(width: int) -> SpecializedKernel:
    """Return the kernel of `take` for elements of `width` bytes."""
    return take_kernel.specialize(TYPE=bits_of_width(width))


def gather(width: int) -> SpecializedKernel:
    """Return the kernel of `gather` for elements of `width` bytes."""
    return gather_kernel.specialize(TYPE=bits_of_width(width))


def move(width: int, *, into: bool) -> SpecializedKernel:
    """Return the kernel that copies a block `into` a larger tensor, or out of it."""
    return move_kernel.specialize(TYPE=bits_of_width(width), INTO=into)
