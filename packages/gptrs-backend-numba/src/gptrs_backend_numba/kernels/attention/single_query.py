"""Source of the kernel of attention for a single query, whose scores are few enough to be kept."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.registers import load, store, typed_pointer
from gptrs_backend_numba.codegen.scalar import bf16_to_f32, f16_to_f32
from gptrs_backend_numba.kernels.attention.attention_ir import prefetch_row
from gptrs_backend_numba.kernels.attention.geometry import seen_keys, source
from gptrs_backend_numba.kernels.attention.softmax_ir import weigh_row

KEYS_AHEAD = 16
"""How many keys ahead the memory is asked for."""

_ROWS = """
    matrix = task // columns
    column = task - matrix * columns
    batch = matrix // G[HEADS]
    head = matrix - batch * G[HEADS]
    t = column // group
    line = head * group + column - t * group
    held = np.empty(depth + size + width + PANEL + 2 * FLOATS + 16, np.float32)
    row = (held.ctypes.data + 63) // 64 * 64
    sums = row + 4 * depth
    weights = sums + 4 * (width + PANEL)
    X, A, W = pointer(row, np.float32), pointer(sums, np.float32), pointer(weights, np.float32)
    seen = seen_keys(G[CAUSAL], G[GIVEN], G[AHEAD], P, t, size)
    Q, O = {Q}, {O}
    place = batch * G[QB] + line * G[QH] + t * G[QT]
    for d in range(depth):
        X[d] = {q} * scale
    keys, step = key + {size} * (batch * G[KB] + head * G[KH]), {size} * G[KS]
    values, v_step = G[VALUE] + {size} * (batch * G[VB] + head * G[VH]), {size} * G[VS]
    whole = depth - depth % (2 * FLOATS) if size >= DOT_ROWS else 0
    for j in range(min(KEYS_AHEAD, seen)):
        prefetch_row(keys + j * step, {size} * depth)
    if whole > 0:
        for j in range(0, seen, DOT_ROWS):
            # The processor alone looks too little ahead, and not beyond the end of the keys.
            for i in range(j, min(j + DOT_ROWS, seen)):
                prefetch_row(keys + min(i + KEYS_AHEAD, seen - 1) * step, {size} * depth)
                prefetch_row(values + i * v_step, {size} * width)
            # The last keys of all are read again rather than any beyond the end.
            at = min(j, size - DOT_ROWS)
            dots_{dtype}(row, keys + at * step, step, weights + 4 * at, whole)
    if whole < depth:
        rest = pointer(row + 4 * whole, np.float32)
        for j in range(seen):
            score = product_of_{dtype}(rest, {rest}, depth - whole)
            W[j] = W[j] + score if whole > 0 else score
    if G[MASKED]:
        hidden = batch * G[MB] + line * G[MH] + t * G[MT]
        for j in range(seen):
            if HIDDEN[hidden + j * G[MS]] == 0:
                W[j] = -INF
    padded = (seen + FLOATS - 1) // FLOATS * FLOATS
    for j in range(seen, padded):
        W[j] = -INF
    weigh_row(weights, padded, row)
    total = X[0]
    if width >= PANEL:
        for e in range(0, width, PANEL):
            # The last numbers of all are computed again rather than any beyond the end.
            at = min(e, width - PANEL)
            V = values + {size} * at
            tile_1_{dtype}(weights, V, v_step, seen, 0, 0, 0, 0, sums + 4 * at, PANEL, V, v_step)
    else:
        for e in range(width):
            A[e] = 0.0
        for j in range(seen):
            V, weight = {V}, W[j]
            for e in range(width):
                A[e] = fma(weight, {v}, A[e])
    place = batch * G[OB] + t * G[OT] + line * G[OH]
    for e in range(width):
        O[place + e] = {out}
    held[0] = 0  # known to the loops by address only
    return 0
"""


def rows_source(dtype: DType) -> str:
    """Tasks of one query."""
    return source(
        _ROWS,
        dtype,
        rest=typed_pointer(f"keys + j * step + {dtype.itemsize} * whole", dtype),
        V=typed_pointer("values + j * v_step", dtype),
        v=load(dtype, "V[e]"),
        out=store(dtype, "divide(A[e], total)"),
    )


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_f32(x, y, count):
    """The sum of `count` products, in an order that depends on the count alone."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * y[i]
    return total


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_bf16(x, y, count):
    """As `product_of_f32` for bfloat16 on the right."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * bf16_to_f32(y[i])
    return total


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_f16(x, y, count):
    """As `product_of_f32` for half-precision floats on the right."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * f16_to_f32(y[i])
    return total


NAMES: dict[str, object] = {
    "KEYS_AHEAD": KEYS_AHEAD,
    "INF": np.float32(np.inf),
    "seen_keys": seen_keys,
    "prefetch_row": prefetch_row,
    "weigh_row": weigh_row,
    "product_of_f32": product_of_f32,
    "product_of_bf16": product_of_bf16,
    "product_of_f16": product_of_f16,
}
"""Additional names of the source."""
