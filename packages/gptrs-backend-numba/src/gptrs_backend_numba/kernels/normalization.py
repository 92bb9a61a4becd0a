"""Kernel of `layer_norm`: the lines of a tensor along its axis."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.elements import cast_element_of, load_as, memory_of, register_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import divide, keep_alive, offset, pointer, square_root

BLOCK = 256
"""Elements that are summed in their own type, in f64 beyond: so few that the error is a unit."""


@kernel
def layer_norm_task(
    x, affine, out, geometry, task, *, ELEMENT, WIDE, ONE, EPSILON, load, store,
):  # fmt: skip
    """Normalize a block of lines in f32 or f64; `affine` is the scale, then the bias.

    Geometry: number of lines, lines a task, length, stride; how many elements follow the axis in
    the result; number of axes of lines and (size, stride) of each.
    """
    G = pointer(geometry, np.int64)
    X, W, O = pointer(x, ELEMENT), pointer(affine, ELEMENT), pointer(out, ELEMENT)
    lines, block, n, step, inner, rank = G[0], G[1], G[2], G[3], G[4], G[5]
    held = np.empty(n, WIDE)
    H = pointer(held.ctypes.data, WIDE)
    count = convert(n, np.float64)
    power = ONE
    while convert(n, WIDE) * power > ONE:  # so that no sum in f64 overflows
        power = power * convert(0.5, WIDE)
    share = count * convert(power, np.float64)
    for line in range(task * block, min(lines, (task + 1) * block)):
        source = offset(G, 6, rank, line)
        outer = line // inner
        target = outer * n * inner + line - outer * inner
        if step == 1:
            for i in range(n):
                H[i] = load(X[source + i])
        else:
            for i in range(n):
                H[i] = load(X[source + i * step])
        mean = divide(shift(H, n, convert(0, WIDE), power), share)
        rest = divide(shift(H, n, convert(mean, WIDE), power), share)
        square = convert(divide(squares(H, n, convert(rest, WIDE)), count), WIDE)
        scale = divide(ONE, square_root(square + EPSILON))
        if inner == 1:
            for i in range(n):
                O[target + i] = store(H[i] * scale * load(W[i]) + load(W[n + i]))
        else:
            for i in range(n):
                O[target + i * inner] = store(H[i] * scale * load(W[i]) + load(W[n + i]))
    keep_alive(held)
    return 0


def layer_norm(dtype: DType, epsilon: np.generic) -> SpecializedKernel:
    """Return the kernel for elements of `dtype`; `epsilon` is a register value of it."""
    wide = register_of(dtype.accumulator)
    return layer_norm_task.specialize(
        ELEMENT=memory_of(dtype),
        WIDE=wide,
        ONE=wide(1),
        EPSILON=epsilon,
        load=load_as(dtype, dtype.accumulator),
        store=cast_element_of(dtype.accumulator, dtype),
    )


@register_jitable
def shift(elements, count, by, power):
    """Take `by` from `count` elements; return the sum of what is left times `power`, in f64.

    A mean is computed twice, of the elements and of what it leaves of them, which is its rounding
    error: a line of equal elements is then exactly 0. `power` is a power of two that keeps the sum
    of a block finite.
    """
    total = 0.0
    for begin in range(0, count, BLOCK):
        total += _shifted(elements, begin, min(begin + BLOCK, count), by, power)
    return total


@register_jitable
def squares(elements, count, by):
    """Take `by` from `count` elements; return the sum of the squares of what is left, in f64."""
    total = 0.0
    for begin in range(0, count, BLOCK):
        total += _squared(elements, begin, min(begin + BLOCK, count), by)
    return total


# Blocks are summed in any order, so that they vectorize: one order for one length on any threads.
# They begin with a zero of their type (NaN where the mean is infinite), not with an element: what
# is left of a block would be no whole number of vectors.
@register_jitable(fastmath={"reassoc"})
def _shifted(elements, begin, end, by, power):
    total = difference(by, by)
    for i in range(begin, end):
        rest = difference(elements[i], by)
        elements[i] = rest
        total += rest * power
    return total


@register_jitable(fastmath={"reassoc"})
def _squared(elements, begin, end, by):
    total = difference(by, by)
    for i in range(begin, end):
        rest = difference(elements[i], by)
        elements[i] = rest
        total += rest * rest
    return total


@register_jitable
def difference(x, y):
    """Return `x - y`, which no sum around it takes apart."""
    return x - y
