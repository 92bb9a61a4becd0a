"""Kernels of `reduce_window` and `extract_patches`.

A row is what lies along one axis of positions, with the contiguous elements that follow it, and is
cut in chunks that the nearest cache holds; a task does some chunks. Where a window leaves its axis
is worked out before the loops over elements, which need no test then.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    Unary,
    bits_of_width,
    cast_element_of,
    memory_of,
    register_of,
    rounded_of,
)
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.kernels.reduction import combined_of


@kernel
def reduce_task(x, unused, out, geometry, task, *, OPERAND, RESULT, TOTAL, START, add_tap, store):
    """Reduce the windows of some chunks of a contiguous operand.

    Geometry: number of chunks in all, a task and a row, positions a chunk, elements that follow the
    axis of rows, number of axes before it; positions, window, stride, low padding, dilation and dim
    of that axis; the same of each axis before it, with the stride of the operand.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    items, block, chunks, chunk, inner, rank = G[0], G[1], G[2], G[3], G[4], G[5]
    J, window, stride, low, dilation, dim = G[6], G[7], G[8], G[9], G[10], G[11]
    at = np.empty(4 * rank + 1, np.int64)
    totals = np.empty(chunk * inner, TOTAL)
    T = pointer(totals.ctypes.data, TOTAL)
    for item in range(task * block, min(items, (task + 1) * block)):
        row = item // chunks
        first = (item - row * chunks) * chunk
        last = min(first + chunk, J)
        count = (last - first) * inner
        for j in range(count):
            T[j] = START
        # Taps that no position of the chunk reaches are left out.
        k_first = max(0, ceiling(low - (last - 1) * stride, dilation))
        k_last = min(window, ceiling(dim + low - first * stride, dilation))
        for _ in range(begin_taps(G, at, row, True)):
            base = tap_offset(G, at)
            for k in range(k_first, k_last):
                reach = k * dilation - low
                j_first = max(first, ceiling(-reach, stride))
                n = min(last, ceiling(dim - reach, stride)) - j_first
                t = (j_first - first) * inner
                s = base + (reach + j_first * stride) * inner
                add_tap(T, X, t, s, n, inner, stride)
            next_tap(G, at)
        o = (row * J + first) * inner
        for j in range(count):
            O[o + j] = store(T[j])
    keep_alive(totals)
    return 0


@kernel_part
def add_tap(T, X, t, s, n, inner, stride, *, combine):
    """Combine the totals of `n` positions from `t` on with the elements of one tap from `s` on."""
    if stride == 1:
        for j in range(n * inner):
            T[t + j] = combine(T[t + j], X[s + j])
    elif inner == 1:
        for j in range(n):
            T[t + j] = combine(T[t + j], X[s + j * stride])
    else:
        for _ in range(n):
            for j in range(inner):
                T[t + j] = combine(T[t + j], X[s + j])
            s += stride * inner
            t += inner


@kernel
def patches_task(x, value, out, geometry, task, *, TYPE):
    """Copy what windows see of a contiguous operand side by side; geometry as of `reduce_task`."""
    X, O = pointer(x, TYPE), pointer(out, TYPE)
    fill = pointer(value, TYPE)[0]
    G = pointer(geometry, np.int64)
    items, block, chunks, chunk, inner, rank = G[0], G[1], G[2], G[3], G[4], G[5]
    J, window, stride, low, dilation, dim = G[6], G[7], G[8], G[9], G[10], G[11]
    at = np.empty(4 * rank + 1, np.int64)
    for item in range(task * block, min(items, (task + 1) * block)):
        row = item // chunks
        first = (item - row * chunks) * chunk
        taps = begin_taps(G, at, row, False)
        o = (row * J + first) * taps * window * inner
        for j in range(first, min(first + chunk, J)):
            reach = j * stride - low
            k_first = min(window, max(0, ceiling(-reach, dilation)))
            k_last = max(k_first, min(window, ceiling(dim - reach, dilation)))
            for _ in range(taps):
                base = tap_offset(G, at)
                next_tap(G, at)
                if base < 0:
                    for i in range(window * inner):
                        O[o + i] = fill
                    o += window * inner
                    continue
                for i in range(k_first * inner):
                    O[o + i] = fill
                o += k_first * inner
                s = base + (reach + k_first * dilation) * inner
                run, runs = inner, k_last - k_first
                if dilation == 1:
                    run, runs = runs * inner, min(runs, 1)
                for _ in range(runs):
                    for i in range(run):
                        O[o + i] = X[s + i]
                    o += run
                    s += dilation * inner
                for i in range((window - k_last) * inner):
                    O[o + i] = fill
                o += (window - k_last) * inner
    return 0


def reduce_windows(
    kind: str, start: np.generic, operand: DType, accumulator: DType, result: DType
) -> SpecializedKernel:
    """Return the kernel of `reduce_window`; totals begin with the register value `start`."""
    return reduce_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        TOTAL=register_of(accumulator),
        START=start,
        add_tap=add_tap.specialize(combine=combined_of(kind, operand, accumulator)),
        store=_store_total_of(accumulator, result),
    )


def patches(width: int) -> SpecializedKernel:
    """Return the kernel of `extract_patches` for elements of `width` bytes."""
    return patches_task.specialize(TYPE=bits_of_width(width))


@cache
def _store_total_of(accumulator: DType, result: DType) -> Unary:
    """Return the function that rounds a total and stores it as `result`."""
    rounded, store = rounded_of(accumulator), cast_element_of(accumulator, result)

    @register_jitable
    @named(f"total_in_{accumulator}_to_{result}")
    def store_total(total):
        return store(rounded(total))

    return store_total


_AXES = 12
"""Position in the geometry of the axes before that of rows, seven numbers each."""


@register_jitable
def ceiling(x, y):
    """Return `x / y` rounded up, for y > 0."""
    return -(-x // y)


@register_jitable
def begin_taps(geometry, at, row, inside):
    """Go to the first position in the window of `row` on all axes before it; return their number.

    `at` keeps for each axis where the window begins, the current position in it, the first and the
    end. With `inside` only those that lie on their axes count.
    """
    taps = np.int64(1)
    for axis in range(geometry[5] - 1, -1, -1):
        g = _AXES + 7 * axis
        rest = row // geometry[g]
        begin = (row - rest * geometry[g]) * geometry[g + 2] - geometry[g + 3]
        row = rest
        first, end = np.int64(0), geometry[g + 1]
        if inside:
            first = max(first, ceiling(-begin, geometry[g + 4]))
            end = max(first, min(end, ceiling(geometry[g + 5] - begin, geometry[g + 4])))
        at[4 * axis], at[4 * axis + 1] = begin, first
        at[4 * axis + 2], at[4 * axis + 3] = first, end
        taps *= end - first
    return taps


@register_jitable
def tap_offset(geometry, at):
    """Return the element offset of the current position, -1 if it lies outside of an axis."""
    total = np.int64(0)
    for axis in range(geometry[5]):
        g = _AXES + 7 * axis
        position = at[4 * axis] + at[4 * axis + 1] * geometry[g + 4]
        if position < 0 or position >= geometry[g + 5]:
            return np.int64(-1)
        total += position * geometry[g + 6]
    return total


@register_jitable
def next_tap(geometry, at):
    """Go on in row-major order; after the last position comes the first."""
    for axis in range(geometry[5] - 1, -1, -1):
        at[4 * axis + 1] += 1
        if at[4 * axis + 1] < at[4 * axis + 3]:
            break
        at[4 * axis + 1] = at[4 * axis + 2]
