"""The kernel of attention for a single query, whose scores are few enough to be kept."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import load_of, memory_of, store_of
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import divide, fma, keep_alive, pointer
from gptrs_backend_numba.codegen.scalar import bf16_to_f32, f16_to_f32
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.attention.attention_ir import prefetch_row, softmax_row
from gptrs_backend_numba.kernels.attention.geometry import (
    CAUSAL,
    DEFAULT_OFFSET,
    GROUP,
    GUARD,
    HEAD_DIM,
    IS_OFFSET_GIVEN,
    KB,
    KH,
    KS,
    KV_HEADS,
    MASK,
    MASKED,
    MB,
    MH,
    MS,
    MT,
    OB,
    OFFSET,
    OH,
    OT,
    QB,
    QH,
    QT,
    SCALE,
    VALUE,
    VALUE_DIM,
    VB,
    VH,
    VS,
    S,
    T,
    visible_keys,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import DOT_ROWS, PANEL, dots, tile

PREFETCHED_KEYS = 16
"""The distance in keys between the one that is read and the one that is prefetched."""
INF = np.float32(np.inf)


@kernel
def attention_row_task(
    query, key, out, geometry, task,
    *, ELEMENT, SIZE, load, store, multiply_keys, multiply_values,
):  # fmt: skip
    """Compute one query; see `geometry` for the operands."""
    G = pointer(geometry, np.int64)
    group, n_keys, head_dim, value_dim = G[GROUP], G[S], G[HEAD_DIM], G[VALUE_DIM]
    columns = group * G[T]
    scale = pointer(geometry + 8 * SCALE, np.float32)[0]
    offset, mask = pointer(G[OFFSET], np.int64), pointer(G[MASK], np.uint8)
    matrix = task // columns
    column = task - matrix * columns
    batch = matrix // G[KV_HEADS]
    head = matrix - batch * G[KV_HEADS]
    t = column // group
    line = head * group + column - t * group
    held = np.empty(head_dim + n_keys + value_dim + PANEL + 2 * WIDTH + 16, np.float32)
    row = (held.ctypes.data + 63) // 64 * 64
    sums = row + 4 * head_dim
    scores = sums + 4 * (value_dim + PANEL)
    X, A, W = pointer(row, np.float32), pointer(sums, np.float32), pointer(scores, np.float32)
    seen = visible_keys(G[CAUSAL], G[IS_OFFSET_GIVEN], G[DEFAULT_OFFSET], offset, t, n_keys)
    Q, O = pointer(query, ELEMENT), pointer(out, ELEMENT)
    start = batch * G[QB] + line * G[QH] + t * G[QT]
    for d in range(head_dim):
        X[d] = load(Q[start + d]) * scale
    keys, k_step = key + SIZE * (batch * G[KB] + head * G[KH]), SIZE * G[KS]
    values, v_step = G[VALUE] + SIZE * (batch * G[VB] + head * G[VH]), SIZE * G[VS]
    multiply_keys(row, keys, k_step, values, v_step, scores, seen, n_keys, head_dim, value_dim)
    if G[MASKED]:
        hidden = batch * G[MB] + line * G[MH] + t * G[MT]
        for j in range(seen):
            if mask[hidden + j * G[MS]] == 0:
                W[j] = -INF
    # Sums by lanes take whole vectors; -inf behind the last key adds an exponential of 0.
    padded = (seen + WIDTH - 1) // WIDTH * WIDTH
    for j in range(seen, padded):
        W[j] = -INF
    softmax_row(scores, padded, row)
    total = X[0]
    if G[GUARD] and total == 0.0:  # it sees no key
        total = np.float32(1.0)
    multiply_values(scores, values, v_step, sums, seen, value_dim)
    start = batch * G[OB] + t * G[OT] + line * G[OH]
    for e in range(value_dim):
        O[start + e] = store(divide(A[e], total))
    keep_alive(held)
    return 0


@kernel_part
def multiply_keys(
    row, keys, k_step, values, v_step, scores, seen, n_keys, head_dim, value_dim,
    *, ELEMENT, SIZE, dot_rows, product,
):  # fmt: skip
    """Compute the scores of the first `seen` keys while prefetching their values."""
    W = pointer(scores, np.float32)
    whole = head_dim - head_dim % (2 * WIDTH) if n_keys >= DOT_ROWS else 0
    for j in range(min(PREFETCHED_KEYS, seen)):
        prefetch_row(keys + j * k_step, SIZE * head_dim)
    if whole > 0:
        for j in range(0, seen, DOT_ROWS):
            # The processor alone looks too little ahead, and not beyond the end of the keys.
            for i in range(j, min(j + DOT_ROWS, seen)):
                prefetch_row(keys + min(i + PREFETCHED_KEYS, seen - 1) * k_step, SIZE * head_dim)
                prefetch_row(values + i * v_step, SIZE * value_dim)
            # The last keys of all are read again rather than any beyond the end.
            at = min(j, n_keys - DOT_ROWS)
            dot_rows(row, keys + at * k_step, k_step, scores + 4 * at, whole)
    if whole < head_dim:
        rest = pointer(row + 4 * whole, np.float32)
        for j in range(seen):
            score = product(
                rest, pointer(keys + j * k_step + SIZE * whole, ELEMENT), head_dim - whole
            )
            W[j] = W[j] + score if whole > 0 else score


@kernel_part
def multiply_values(
    scores, values, v_step, sums, seen, value_dim, *, ELEMENT, SIZE, load, row_tile
):  # fmt: skip
    """Add up the first `seen` values times the powers of their scores."""
    A, W = pointer(sums, np.float32), pointer(scores, np.float32)
    if value_dim >= PANEL:
        for e in range(0, value_dim, PANEL):
            # The last numbers of all are computed again rather than any beyond the end.
            at = min(e, value_dim - PANEL)
            V = values + SIZE * at
            row_tile(scores, V, v_step, seen, 0, 0, 0, 0, sums + 4 * at, PANEL, V, V, v_step)
    else:
        for e in range(value_dim):
            A[e] = 0.0
        for j in range(seen):
            V, probability = pointer(values + j * v_step, ELEMENT), W[j]
            for e in range(value_dim):
                A[e] = fma(probability, load(V[e]), A[e])


def attention_row(dtype: DType) -> SpecializedKernel:
    """Return the kernel for operands of one type."""
    element, size, name = memory_of(dtype), dtype.itemsize, str(dtype)
    return attention_row_task.specialize(
        ELEMENT=element,
        SIZE=size,
        load=load_of(dtype),
        store=store_of(dtype),
        multiply_keys=multiply_keys.specialize(
            ELEMENT=element, SIZE=size, dot_rows=dots(name), product=_PRODUCTS[name]
        ),
        multiply_values=multiply_values.specialize(
            ELEMENT=element, SIZE=size, load=load_of(dtype), row_tile=tile(1, name, chains=4)
        ),
    )


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_f32(x, y, count):
    """Return the sum of `count` products, in an order that depends on the count alone."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * y[i]
    return total


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_bf16(x, y, count):
    """Return the product as `product_of_f32` does, for bfloat16 on the right."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * bf16_to_f32(y[i])
    return total


@register_jitable(fastmath={"reassoc", "contract"})
def product_of_f16(x, y, count):
    """Return the product as `product_of_f32` does, for half-precision floats on the right."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * f16_to_f32(y[i])
    return total


_PRODUCTS = {"f32": product_of_f32, "bf16": product_of_bf16, "f16": product_of_f16}
