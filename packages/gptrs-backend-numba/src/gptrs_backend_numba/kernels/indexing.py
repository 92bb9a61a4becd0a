"""Kernels that read or write at positions given by a tensor of int64.

They move elements without looking at them, so there is one for each width in bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    Binary,
    bits_of_width,
    load_of,
    memory_of,
    store_of,
)
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import offset, pointer
from gptrs_backend_numba.kernels.reduction import combined_of


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


# Kernels that combine tensors into elements named by indices of int64.


@kernel
def scatter_kernel(updates, indices, out, geometry, *, UPDATE, RESULT, combine):
    """Combine each update with an element of the result, in row-major order of the updates.

    Return 1, before anything is written, when an index is out of range. Geometry: number of
    indices, size of the axis they count along, its stride in the result; then how to walk over the
    updates: number of rows, of axes besides the row, length of a row; its step in updates, indices
    and result; (size, stride) of each of these axes in updates, in indices, in the result. The axis
    has stride 0 in the result there.
    """
    G = pointer(geometry, np.int64)
    U, I, O = pointer(updates, UPDATE), pointer(indices, np.int64), pointer(out, RESULT)
    count, limit, along, rows, rank, n = G[0], G[1], G[2], G[3], G[4], G[5]
    u_step, i_step, o_step = G[6], G[7], G[8]
    for i in range(count):
        if I[i] < 0 or I[i] >= limit:
            return 1
    for row in range(rows):
        u = offset(G, 9, rank, row)
        i = offset(G, 9 + 2 * rank, rank, row)
        o = offset(G, 9 + 4 * rank, rank, row)
        if i_step == 0 and u_step == 1 and o_step == 1:  # whole rows: this loop vectorizes
            o += I[i] * along
            for j in range(n):
                O[o + j] = combine(O[o + j], U[u + j])
        else:
            for j in range(n):
                u_at = u + j * u_step
                o_at = o + j * o_step + I[i + j * i_step] * along
                O[o_at] = combine(O[o_at], U[u_at])
    return 0


@register_jitable
def replaced(old, update):
    """Return the update."""
    return update


def replace(width: int) -> SpecializedKernel:
    """Return the kernel that writes elements of `width` bytes one after another."""
    bits = bits_of_width(width)
    return scatter_kernel.specialize(UPDATE=bits, RESULT=bits, combine=replaced)


def combine(kind: str, operand: DType, accumulator: DType) -> SpecializedKernel:
    """Return the kernel that reduces updates into a result, which holds `accumulator`s."""
    return scatter_kernel.specialize(
        UPDATE=memory_of(operand),
        RESULT=memory_of(accumulator),
        combine=_combined_element_of(kind, operand, accumulator),
    )


@cache
def _combined_element_of(kind: str, operand: DType, accumulator: DType) -> Binary:
    """Return the function of an element of the result and an update to the next element."""
    load, store = load_of(accumulator), store_of(accumulator)
    combined = combined_of(kind, operand, accumulator)

    @register_jitable
    @named(f"{kind}_of_{operand}_into_{accumulator}")
    def combined_element(old, update):
        return store(combined(load(old), update))

    return combined_element
