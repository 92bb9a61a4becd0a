"""Kernels of `reduce`, `argmax` and `argmin` over strided operands."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen import machine
from gptrs_backend_numba.codegen.deferred import named, register_jitable
from gptrs_backend_numba.codegen.elements import (
    Binary,
    bits_of_width,
    cast_element_of,
    load_as,
    memory_of,
    rounded_of,
)
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.keys import key_of
from gptrs_backend_numba.codegen.machine import offset, pointer


@kernel
def reduce_task(
    x, unused, out, geometry, task, *, OPERAND, RESULT, IDENTITY, combine, rounded, store
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
        total = IDENTITY
        for r in range(outer):
            first = base + offset(G, 7 + 2 * kept, reduced, r)
            if stride == 1:  # a loop of its own, so that it vectorizes
                for i in range(n):
                    total = rounded(combine(total, X[first + i]))
            else:
                for i in range(n):
                    total = rounded(combine(total, X[first + i * stride]))
        O[o] = store(total)
    return 0


@kernel
def reduce_columns_task(
    x, unused, out, geometry, task, *, OPERAND, RESULT, IDENTITY, combine, rounded
):  # fmt: skip
    """Reduce some axes of results that lie side by side, a chunk of a row of them at a time.

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
        for j in range(o * width + begin, o * width + end):
            O[j] = IDENTITY
        for r in range(outer):
            first = base + offset(G, 10 + 2 * kept, reduced, r)
            for i in range(n):
                row = first + i * stride - o * width
                for j in range(o * width + begin, o * width + end):
                    O[j] = rounded(combine(O[j], X[row + j]))
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
    return reduce_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        IDENTITY=identity,
        combine=combined_of(kind, operand, accumulator),
        rounded=rounded_of(accumulator),
        store=cast_element_of(accumulator, result),
    )


def column_reduction(
    kind: str, identity: np.generic, operand: DType, result: DType
) -> SpecializedKernel:
    """Return the kernel of `reduce` for results side by side, which hold the running values."""
    return reduce_columns_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        IDENTITY=identity,
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
    return added if kind == "sum" else multiplied


@register_jitable
def added(x, y):
    """Return the sum of two floats or complex numbers."""
    return x + y


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
