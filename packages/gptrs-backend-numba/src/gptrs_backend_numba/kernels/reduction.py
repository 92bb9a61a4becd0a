"""Kernels of `reduce`, `argmax` and `argmin` over strided operands."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen import machine
from gptrs_backend_numba.codegen.elements import (
    Binary,
    Unary,
    bits_of_width,
    cast_element_of,
    cast_of,
    load_as,
    memory_of,
    rounded_of,
)
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.kernel_store import key_of
from gptrs_backend_numba.codegen.machine import choose, offset, pointer

SUMMED = 1024
"""Floats that are summed in f32 before they join a total in f64: a running f32 total of a million
numbers is wrong from the fourth digit on, and one of 2^24 ones no longer grows."""
_ALL = 1 << 62


@kernel
def reduce_task(
    x, unused, out, geometry, task,
    *, OPERAND, RESULT, IDENTITY, BLOCK, combine, rounded, widen, join, store,
):  # fmt: skip
    """Reduce some axes for a block of results.

    Geometry: number of results in all and a task, of kept axes, of rows of reduced elements, of
    reduced axes besides the row; row length and stride; then (size, stride) of each kept and each
    reduced axis.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    count, block, kept, outer, reduced, n, stride = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    for o in range(task * block, min(count, (task + 1) * block)):
        base = offset(G, 7, kept, o)
        total = widen(IDENTITY)
        for r in range(outer):
            first = base + offset(G, 7 + 2 * kept, reduced, r)
            begin = np.int64(0)
            # Without vectors, the numbers of a block are added one after another.
            most = BLOCK if stride == 1 else BLOCK // 16
            while begin < n:
                part, end = IDENTITY, min(begin + most, n)
                if stride == 1:  # a loop of its own, so that it vectorizes
                    for i in range(begin, end):
                        part = rounded(combine(part, X[first + i]))
                else:
                    for i in range(begin, end):
                        part = rounded(combine(part, X[first + i * stride]))
                total = rounded(join(total, widen(part)))
                begin = end
        O[o] = store(total)
    return 0


@kernel
def reduce_columns_task(
    x, unused, out, geometry, task, *, OPERAND, RESULT, IDENTITY, BLOCK, combine, rounded
):  # fmt: skip
    """Reduce some axes of results that lie side by side, a chunk of a row of them at a time.

    After each BLOCK of rows, running sums join totals in f64.

    Geometry: number of chunks in all, a task and a row, of results a chunk, of kept axes besides
    the row, its length, number of rows of reduced elements, of reduced axes besides the last, and
    its size and stride; then (size, stride) of each kept and each reduced axis.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    items, block, chunks, chunk, kept, width = G[0], G[1], G[2], G[3], G[4], G[5]
    outer, reduced, n, stride = G[6], G[7], G[8], G[9]
    for item in range(task * block, min(items, (task + 1) * block)):
        o = item // chunks
        begin = (item - o * chunks) * chunk
        end = min(begin + chunk, width)
        base = offset(G, 10, kept, o)
        start = o * width + begin
        many = outer * n > BLOCK
        T = np.full(end - begin if many else 0, -0.0)
        for j in range(start, o * width + end):
            O[j] = IDENTITY
        added = np.int64(0)
        for r in range(outer):
            first = base + offset(G, 10 + 2 * kept, reduced, r)
            row, left = first - o * width, n
            while left > 0:
                rows = min(left, BLOCK - added)
                for _ in range(rows // 4):  # of the running value, one load and store for four rows
                    for j in range(start, o * width + end):
                        total = rounded(combine(O[j], X[row + j]))
                        total = rounded(combine(total, X[row + stride + j]))
                        total = rounded(combine(total, X[row + 2 * stride + j]))
                        O[j] = rounded(combine(total, X[row + 3 * stride + j]))
                    row += 4 * stride
                for _ in range(rows % 4):
                    for j in range(start, o * width + end):
                        O[j] = rounded(combine(O[j], X[row + j]))
                    row += stride
                left -= rows
                added += rows
                if many and added == BLOCK:
                    added = np.int64(0)
                    for j in range(T.size):
                        T[j] += O[start + j]
                        O[start + j] = IDENTITY
        for j in range(T.size):
            O[start + j] = T[j] + O[start + j]
    return 0


@kernel
def extreme_task(x, unused, out, geometry, task, *, OPERAND, RESULT, key, is_better):
    """Find the index of the first best element; the first NaN comes before all else.

    Geometry: number of results in all and a task, of kept axes, length and stride of the axis; then
    (size, stride) of each kept axis.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    count, block, kept, n, stride = G[0], G[1], G[2], G[3], G[4]
    for o in range(task * block, min(count, (task + 1) * block)):
        base = offset(G, 5, kept, o)
        # Keys are integers in the order of the elements: a NaN compares as the best.
        best = key(X[base])
        at = np.int64(0)
        for i in range(np.int64(1), n):
            found = key(X[base + i * stride])
            if is_better(found, best):
                best = found
                at = i
        O[o] = at
    return 0


def reduction(
    kind: str, identity: np.generic, operand: DType, accumulator: DType, result: DType
) -> SpecializedKernel:
    """Return the kernel of `reduce`; `identity` is a register value of the accumulator."""
    sums = kind in ("sum", "squares") and accumulator.is_float
    wide = dtypes.f64 if sums and accumulator is dtypes.f32 else accumulator
    return reduce_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        IDENTITY=identity,
        BLOCK=SUMMED if sums else _ALL,
        combine=combined_of(kind, operand, accumulator),
        rounded=rounded_of(accumulator),
        widen=cast_of(accumulator, wide),
        join=_combination("sum" if sums else kind, wide),
        store=cast_element_of(wide, result),
    )


def column_reduction(
    kind: str, identity: np.generic, operand: DType, result: DType
) -> SpecializedKernel:
    """Return the kernel of `reduce` for results side by side, which hold the running values."""
    return reduce_columns_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        IDENTITY=identity,
        BLOCK=SUMMED // 4 if kind == "sum" and result is dtypes.f32 else _ALL,
        combine=combined_of(kind, operand, result),
        rounded=rounded_of(result),
    )


def extreme(largest: bool, operand: DType, result: DType) -> SpecializedKernel:
    """Return the kernel of `argmax` or `argmin`."""
    return extreme_task.specialize(
        OPERAND=bits_of_width(operand.itemsize),
        RESULT=memory_of(result),
        key=key_of(operand, nan_is_least=not largest),
        is_better=is_greater if largest else is_less,
    )


@cache
def combined_of(kind: str, operand: DType, accumulator: DType) -> Binary:
    """Return the function of a total and an element in memory to the next total, not rounded."""
    load, combine = load_as(operand, accumulator), _combination(kind, accumulator)

    @register_jitable
    @named(f"{kind}_of_{operand}_in_{accumulator}")
    def combined(total, element):
        return combine(total, load(element))

    return combined


def _combination(kind: str, dtype: DType) -> object:
    if kind in ("and", "or"):
        return getattr(machine, f"bit_{kind}")
    if kind in ("max", "min"):
        return getattr(machine, f"{'float' if dtype.is_float else 'integer'}_{kind}imum")
    if dtype.is_integer:
        return machine.wrap_add if kind == "sum" else machine.wrap_mul
    return {"sum": added, "squares": square_added, "prod": multiplied}[kind]


@register_jitable
def added(x, y):
    """Return the sum of two floats or complex numbers."""
    return x + y


@register_jitable
def square_added(x, y):
    """Return the sum of a float and the square of another."""
    return x + y * y


@register_jitable
def multiplied(x, y):
    """Return the product of two floats or complex numbers."""
    return x * y


@register_jitable
def is_greater(x, y):
    """Return whether x > y."""
    return x > y


@register_jitable
def is_less(x, y):
    """Return whether x < y."""
    return x < y


# Kernel of `cumulative`: running totals along the lines of a tensor.


@kernel
def cumulative_task(
    x, unused, out, geometry, task,
    *, OPERAND, RESULT, START, IDENTITY, EXCLUSIVE, combine, rounded, store,
):  # fmt: skip
    """Compute the totals of a block of lines, up to each element or to the one before it.

    Geometry: number of lines, lines a task, length; the first element and the step in the operand
    and in the result, where a step may be negative; how many elements follow the axis in the
    result; the number of axes of lines and (size, stride) of each.
    """
    G = pointer(geometry, np.int64)
    X, O = pointer(x, OPERAND), pointer(out, RESULT)
    lines, block, n, x_first, x_step, o_first, o_step = G[0], G[1], G[2], G[3], G[4], G[5], G[6]
    inner, rank = G[7], G[8]
    for line in range(task * block, min(lines, (task + 1) * block)):
        source = x_first + offset(G, 9, rank, line)
        outer = line // inner
        target = o_first + outer * n * inner + line - outer * inner
        # What is shown where no element counts differs from the start: a sum of nothing is 0.0,
        # but sums begin with -0.0, so that one of nothing but -0.0 keeps its sign.
        shown, total = IDENTITY, START
        for _ in range(n):
            if EXCLUSIVE:
                O[target] = store(rounded(shown))
            total = combine(total, X[source])
            shown = total
            if not EXCLUSIVE:
                O[target] = store(rounded(shown))
            source += x_step
            target += o_step
    return 0


def cumulative(
    kind: str,
    start: np.generic,
    identity: np.generic,
    operand: DType,
    accumulator: DType,
    result: DType,
    *,
    exclusive: bool,
) -> SpecializedKernel:
    """Return the kernel; totals begin with `start`, an exclusive one shows `identity` first."""
    return cumulative_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        START=start,
        IDENTITY=identity,
        EXCLUSIVE=exclusive,
        combine=combined_of(kind, operand, accumulator),
        rounded=rounded_of(accumulator),
        store=cast_element_of(accumulator, result),
    )


# Kernels that put the elements of each line of a tensor in order.
#
# A task is a block of lines. The geometry begins with the number of lines and of lines a task.


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
    keys, positions = np.empty(room, np.int64), np.empty(room, np.int64)
    spare_keys, spare_positions = np.empty(room, np.int64), np.empty(room, np.int64)
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
            positions[count] = i
            count += 1
            if count == room and i + 1 < n:
                keys, positions, spare_keys, spare_positions = sort_pairs(
                    keys, positions, spare_keys, spare_positions, count
                )
                count = k
                bounded, bound = True, keys[k - 1]
        keys, positions, spare_keys, spare_positions = sort_pairs(
            keys, positions, spare_keys, spare_positions, count
        )
        for i in range(k):
            O[line * k + i] = positions[i]
    return 0


@kernel
def arrange_task(x, positions, out, geometry, task, *, TYPE):
    """Copy the elements of each line at given positions, the lines laid out along an axis.

    Geometry: number of lines, lines a task, positions a line, stride of the line, how many elements
    follow the axis in the result, number of axes of lines; (size, stride) of each of these axes.
    """
    G = pointer(geometry, np.int64)
    X, P, O = pointer(x, TYPE), pointer(positions, np.int64), pointer(out, TYPE)
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
def sort_pairs(keys, positions, spare_keys, spare_positions, count):
    """Sort both arrays by the keys, stably; return them and the spare ones."""
    for start in range(0, count, _RUN):
        _insert(keys, positions, start, min(start + _RUN, count))
    width = np.int64(_RUN)
    while width < count:
        for start in range(0, count, 2 * width):
            middle, end = min(start + width, count), min(start + 2 * width, count)
            _merge(keys, positions, spare_keys, spare_positions, start, middle, end)
        keys, spare_keys = spare_keys, keys
        positions, spare_positions = spare_positions, positions
        width *= 2
    return keys, positions, spare_keys, spare_positions


@register_jitable
def _insert(keys, positions, start, end):
    for i in range(start + 1, end):
        key_, position = keys[i], positions[i]
        at = i
        while at > start and keys[at - 1] > key_:
            keys[at], positions[at] = keys[at - 1], positions[at - 1]
            at -= 1
        keys[at], positions[at] = key_, position


@register_jitable
def _merge(keys, positions, to_keys, to_positions, start, middle, end):
    left, right, at = start, middle, start
    while left < middle and right < end:
        # Which one comes next cannot be predicted, so it is chosen without a branch.
        from_left = keys[left] <= keys[right]
        source = choose(from_left, left, right)
        to_keys[at], to_positions[at] = keys[source], positions[source]
        left += np.int64(from_left)
        right += np.int64(1) - np.int64(from_left)
        at += 1
    for source in range(left, middle):
        to_keys[at], to_positions[at] = keys[source], positions[source]
        at += 1
    for source in range(right, end):
        to_keys[at], to_positions[at] = keys[source], positions[source]
        at += 1
