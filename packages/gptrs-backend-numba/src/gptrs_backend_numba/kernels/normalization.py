"""Kernel of `layer_norm`: the lines of a tensor along its axis."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.elements import (
    cast_element_of,
    load_as,
    load_of,
    memory_of,
    register_of,
    store_of,
)
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, offset, pointer, square_root
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.attention_ir import softmax_row
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS

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


# Kernel of normalizations over positions and groups of channels, which lie side by side.


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
    """Write to S the rounded mean of each group of columns, to D its error, to Q a scale."""
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
        start = first + row * channels
        for j in range(width):
            O[start + j] = (X[start + j] - S[j] - D[j]) * Q[j]
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


# Kernels of `layer_norm`, `rms_norm`, `softmax` and `safe_softmax`: each row in one go, in f32.


FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16)
"""The element types of rows."""
POWER = np.float32(1.0 / BLOCK)
"""Factor of the elements in sums, so that none of a block overflows."""
EPSILON = OTHERS + 4
"""Position in a geometry of the bits of epsilon as f64."""
FIRST = EPSILON + 1
"""Position in a geometry of the number of axes of the rows and (size, stride) of each.

Before it: the addresses of weight and bias, and of nothing; number of rows, rows a task, length and
stride of a row; epsilon.
"""


@kernel_part
def load_row(X, source, step, n, H, *, load):
    """Bring a row of `n` elements, `step` apart, to f32."""
    if step == 1:  # a loop of its own, so that it vectorizes
        for i in range(n):
            H[i] = load(X[source + i])
    else:
        for i in range(n):
            H[i] = load(X[source + i * step])


@kernel
def norm_task(
    x, unused, out, geometry, task,
    *, ELEMENT, CENTERED, WEIGHT, BIAS, load, load_row, store,
):  # fmt: skip
    """Normalize a block of rows: less the mean if `CENTERED`, over the root of the mean square."""
    G = pointer(geometry, np.int64)
    X, O, W, B = (
        pointer(x, ELEMENT), pointer(out, ELEMENT), pointer(G[0], ELEMENT), pointer(G[1], ELEMENT)
    )  # fmt: skip
    rows, block, n, step = G[OTHERS], G[OTHERS + 1], G[OTHERS + 2], G[OTHERS + 3]
    epsilon = np.float32(pointer(geometry + 8 * EPSILON, np.float64)[0])
    held = np.empty(n + WIDTH, np.float32)
    H = pointer(held.ctypes.data, np.float32)
    count = convert(n, np.float64)
    share = count * POWER
    for row in range(task * block, min(rows, (task + 1) * block)):
        load_row(X, offset(G, FIRST + 1, G[FIRST], row), step, n, H)
        rest = np.float32(0.0)
        if CENTERED:
            mean = convert(divide(shift(H, n, rest, POWER), share), np.float32)
            rest = convert(divide(shift(H, n, mean, POWER), share), np.float32)
        mean_square = convert(divide(squares(H, n, rest), count), np.float32)
        scale = divide(np.float32(1.0), square_root(mean_square + epsilon))
        for i in range(n):
            value = H[i] * scale
            if WEIGHT:
                value = value * load(W[i])
            if BIAS:
                value = value + load(B[i])
            O[row * n + i] = store(value)
    keep_alive(held)
    return 0


@kernel
def softmax_task(x, unused, out, geometry, task, *, ELEMENT, SAFE, load_row, store):
    """Write the exponentials of each row of a block over their sum, which is not 0 if `SAFE`."""
    G = pointer(geometry, np.int64)
    X, O = pointer(x, ELEMENT), pointer(out, ELEMENT)
    rows, block, n, step = G[OTHERS], G[OTHERS + 1], G[OTHERS + 2], G[OTHERS + 3]
    held = np.empty(n + WIDTH, np.float32)
    H = pointer(held.ctypes.data, np.float32)
    for row in range(task * block, min(rows, (task + 1) * block)):
        load_row(X, offset(G, FIRST + 1, G[FIRST], row), step, n, H)
        padded = (n + WIDTH - 1) // WIDTH * WIDTH
        for i in range(n, padded):  # whole vectors: exp(-inf) adds nothing
            H[i] = np.float32(-np.inf)
        softmax_row(held.ctypes.data, padded, held.ctypes.data + 4 * n)
        total = H[n]
        if SAFE and total == 0.0:
            total = np.float32(1.0)
        for i in range(n):
            O[row * n + i] = store(divide(H[i], total))
    keep_alive(held)
    return 0


def norm(dtype: DType, *, centered: bool, weight: bool, bias: bool) -> SpecializedKernel:
    """Return the kernel of `layer_norm` (`centered`) or `rms_norm`."""
    return norm_task.specialize(
        ELEMENT=memory_of(dtype),
        CENTERED=centered,
        WEIGHT=weight,
        BIAS=bias,
        load=load_of(dtype),
        load_row=load_row.specialize(load=load_of(dtype)),
        store=store_of(dtype),
    )


def softmax(dtype: DType, *, safe: bool) -> SpecializedKernel:
    """Return the kernel of `softmax` or `safe_softmax`."""
    return softmax_task.specialize(
        ELEMENT=memory_of(dtype),
        SAFE=safe,
        load_row=load_row.specialize(load=load_of(dtype)),
        store=store_of(dtype),
    )
