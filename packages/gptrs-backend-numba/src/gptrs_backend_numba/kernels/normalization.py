"""Kernel of `layer_norm`: the lines of a tensor along its axis."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.elements import cast_element_of, load_as, memory_of, register_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import divide, keep_alive, offset, pointer, square_root


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
    count = convert(n, WIDE)
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
        mean = divide(sum_of(H, n), count)
        for i in range(n):
            H[i] = H[i] - mean
        # The rounding error of the mean: without it, a line of equal elements is exactly 0.
        rest = divide(sum_of(H, n), count)
        for i in range(n):
            H[i] = H[i] - rest
        scale = divide(ONE, square_root(divide(sum_of_squares(H, n), count) + EPSILON))
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


# Sums in any order, so that they vectorize; it is one order for one length on any threads.
@register_jitable(fastmath={"reassoc"})
def sum_of(elements, count):
    """Return the sum of the first `count` elements, at least 1."""
    total = elements[0]
    for i in range(1, count):
        total += elements[i]
    return total


@register_jitable(fastmath={"reassoc"})
def sum_of_squares(elements, count):
    """Return the sum of the squares of the first `count` elements, at least 1."""
    total = elements[0] * elements[0]
    for i in range(1, count):
        total += elements[i] * elements[i]
    return total
