"""Kernels of `layer_norm`, `rms_norm`, `softmax` and `safe_softmax`: each row in one go, in f32."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import convert
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, keep_alive, offset, pointer, square_root
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.softmax_ir import softmax_row
from gptrs_backend_numba.kernels.normalization import BLOCK, shift, squares

FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16)
"""The element types of rows."""
POWER = np.float32(1.0 / BLOCK)
"""Factor of the elements in sums, so that none of a block overflows."""
FIRST = 8
"""Position in a geometry of the number of axes of the rows and (size, stride) of each.

Before it: the addresses of weight, bias and nothing; number of rows, rows a task, length and stride
of a row; the bits of epsilon as f64.
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
    rows, block, n, step = G[3], G[4], G[5], G[6]
    epsilon = np.float32(pointer(geometry + 56, np.float64)[0])
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
    rows, block, n, step = G[3], G[4], G[5], G[6]
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
