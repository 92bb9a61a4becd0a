"""Kernels that put the elements of each line of a tensor in order.

A task is a block of lines. The geometry begins with the number of lines and of lines a task.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import named, register_jitable
from gptrs_backend_numba.codegen.elements import Unary, bits_of_width
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.keys import key_of
from gptrs_backend_numba.codegen.machine import choose, offset, pointer

_RUN = 16
"""Elements up to which insertion is faster than merging."""


@kernel
def order_task(x, unused, out, geometry, task, *, BITS, key):
    """Find the positions of the first `k` elements of each line in a stable order, as int64.

    Geometry: number of lines, lines a task, elements of a line and their stride, `k`, room for
    candidates, number of axes of lines; (size, stride) of each of these axes.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, BITS), pointer(out, np.int64)
    lines, block, n, step, k, room, rank = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    keys, places = np.empty(room, np.int64), np.empty(room, np.int64)
    spare_keys, spare_places = np.empty(room, np.int64), np.empty(room, np.int64)
    for line in range(task * block, min(lines, (task + 1) * block)):
        base = offset(G, 7, rank, line)
        count = np.int64(0)
        # Candidates gather until there is no room; then the best `k` stay, and only what is better
        # than the worst of them is let in. That takes a room of more than `k`, or of all elements.
        bounded, bound = False, np.int64(0)
        for i in range(n):
            found = key(X[base + i * step])
            if bounded and found >= bound:
                continue
            keys[count] = found
            places[count] = i
            count += 1
            if count == room and i + 1 < n:
                keys, places, spare_keys, spare_places = sort_pairs(
                    keys, places, spare_keys, spare_places, count
                )
                count = k
                bounded, bound = True, keys[k - 1]
        keys, places, spare_keys, spare_places = sort_pairs(
            keys, places, spare_keys, spare_places, count
        )
        for i in range(k):
            O[line * k + i] = places[i]
    return 0


@kernel
def arrange_task(x, places, out, geometry, task, *, TYPE):
    """Copy the elements of each line at given positions, the lines laid out along an axis.

    Geometry: number of lines, lines a task, positions a line, stride of the line, how many elements
    follow the axis in the result, number of axes of lines; (size, stride) of each of these axes.
    """
    G = pointer(geometry, np.int64)
    X, P, O = pointer(x, TYPE), pointer(places, np.int64), pointer(out, TYPE)
    lines, block, n, step, inner, rank = G[0], G[1], G[2], G[3], G[4], G[5]
    for line in range(task * block, min(lines, (task + 1) * block)):
        base = offset(G, 6, rank, line)
        outer = line // inner
        to = outer * n * inner + line - outer * inner
        for i in range(n):
            O[to + i * inner] = X[base + P[line * n + i] * step]
    return 0


def order(dtype: DType, *, descending: bool) -> SpecializedKernel:
    """Return the kernel that finds positions in order."""
    key = _descending_key_of(dtype) if descending else key_of(dtype)
    return order_task.specialize(BITS=bits_of_width(dtype.itemsize), key=key)


def arrange(width: int) -> SpecializedKernel:
    """Return the kernel that copies elements of `width` bytes by position."""
    return arrange_task.specialize(TYPE=bits_of_width(width))


@cache
def _descending_key_of(dtype: DType) -> Unary:
    key = key_of(dtype)

    @register_jitable
    @named(f"descending_key_of_{dtype}")
    def descending_key(bits):
        return ~key(bits)

    return descending_key


@register_jitable
def sort_pairs(keys, places, spare_keys, spare_places, count):
    """Sort both arrays by the keys, stably; return them and the spare ones."""
    for start in range(0, count, _RUN):
        _insert(keys, places, start, min(start + _RUN, count))
    width = np.int64(_RUN)
    while width < count:
        for start in range(0, count, 2 * width):
            middle, end = min(start + width, count), min(start + 2 * width, count)
            _merge(keys, places, spare_keys, spare_places, start, middle, end)
        keys, spare_keys = spare_keys, keys
        places, spare_places = spare_places, places
        width *= 2
    return keys, places, spare_keys, spare_places


@register_jitable
def _insert(keys, places, start, end):
    for i in range(start + 1, end):
        key_, place = keys[i], places[i]
        at = i
        while at > start and keys[at - 1] > key_:
            keys[at], places[at] = keys[at - 1], places[at - 1]
            at -= 1
        keys[at], places[at] = key_, place


@register_jitable
def _merge(keys, places, to_keys, to_places, start, middle, end):
    left, right, at = start, middle, start
    while left < middle and right < end:
        # Which one comes next cannot be predicted, so it is chosen without a branch.
        from_left = keys[left] <= keys[right]
        source = choose(from_left, left, right)
        to_keys[at], to_places[at] = keys[source], places[source]
        left += np.int64(from_left)
        right += np.int64(1) - np.int64(from_left)
        at += 1
    for source in range(left, middle):
        to_keys[at], to_places[at] = keys[source], places[source]
        at += 1
    for source in range(right, end):
        to_keys[at], to_places[at] = keys[source], places[source]
        at += 1
