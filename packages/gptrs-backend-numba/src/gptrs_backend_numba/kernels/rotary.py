"""Kernel of `rotary`: each row of x rotated by its rows of cosines and sines."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    Unary,
    cast_element_of,
    load_as,
    load_of,
    memory_of,
    rounded_of,
)
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import pointer, quotient
from gptrs_backend_numba.kernels.elementwise_tasks import OTHERS

FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.f64)
"""The element types of rows; their tables have the same, or f32."""

FIELDS = range(OTHERS, OTHERS + 15)
"""The numbers of a geometry: the sizes of the three axes of rows; the steps of x along them in
elements, of the cosines, of the sines; rows a task, pairs, components that are kept."""
(
    DEPTH, HEIGHT, WIDTH,
    X_DEPTH, X_HEIGHT, X_WIDTH, C_DEPTH, C_HEIGHT, C_WIDTH, S_DEPTH, S_HEIGHT, S_WIDTH,
    BLOCK, HALF, KEPT,
) = FIELDS  # fmt: skip


@kernel
def rotary_task(x, cosines, out, geometry, task, *, ELEMENT, TABLE, apply_rotary):
    """Rotate a block of rows, each product and sum rounded to the type of the tables.

    Geometry: `OTHERS` addresses, the first that of the sines; then `FIELDS`. The result is
    contiguous.
    """
    G = pointer(geometry, np.int64)
    X, C = pointer(x, ELEMENT), pointer(cosines, TABLE)
    S, O = pointer(G[0], TABLE), pointer(out, ELEMENT)
    height, width = G[HEIGHT], G[WIDTH]
    block, half, kept = G[BLOCK], G[HALF], G[KEPT]
    n = 2 * half + kept
    first = task * block
    i = quotient(first, height * width)
    j = quotient(first, width) - i * height
    k = first - (i * height + j) * width
    # The position along the axes is counted up: to divide for each row would take as long as the
    # row itself.
    for row in range(first, min(G[DEPTH] * height * width, first + block)):
        x0 = i * G[X_DEPTH] + j * G[X_HEIGHT] + k * G[X_WIDTH]
        c0 = i * G[C_DEPTH] + j * G[C_HEIGHT] + k * G[C_WIDTH]
        s0 = i * G[S_DEPTH] + j * G[S_HEIGHT] + k * G[S_WIDTH]
        o0 = row * n
        apply_rotary(X, C, S, O, x0, c0, s0, o0, half)
        for r in range(2 * half, n):
            O[o0 + r] = X[x0 + r]
        k += 1
        if k == width:
            k = 0
            j += 1
            if j == height:
                j = 0
                i += 1
    return 0


@kernel_part
def apply_rotary_halves(X, C, S, O, x0, c0, s0, o0, half, *, load, load_table, rounded, store):
    """Rotate the pairs (r, r + half) of one row."""
    # A loop for each half: with both results in one loop, it would first have to find out whether
    # they overlap.
    x1, o1 = x0 + half, o0 + half
    for r in range(half):
        a, b, c, s = load(X[x0 + r]), load(X[x1 + r]), load_table(C[c0 + r]), load_table(S[s0 + r])
        O[o0 + r] = store(rounded(a * c) - rounded(b * s))
    for r in range(half):
        a, b, c, s = load(X[x0 + r]), load(X[x1 + r]), load_table(C[c0 + r]), load_table(S[s0 + r])
        O[o1 + r] = store(rounded(b * c) + rounded(a * s))


@kernel_part
def apply_rotary_pairs(X, C, S, O, x0, c0, s0, o0, half, *, load, load_table, rounded, store):
    """Rotate the pairs (2 r, 2 r + 1) of one row."""
    for r in range(half):
        a, b = load(X[x0 + 2 * r]), load(X[x0 + 2 * r + 1])
        c, s = load_table(C[c0 + r]), load_table(S[s0 + r])
        O[o0 + 2 * r] = store(rounded(a * c) - rounded(b * s))
        O[o0 + 2 * r + 1] = store(rounded(b * c) + rounded(a * s))


def rotary(dtype: DType, table: DType, *, interleaved: bool) -> SpecializedKernel:
    """Return the kernel for rows of `dtype` and tables of `table`."""
    pairs = apply_rotary_pairs if interleaved else apply_rotary_halves
    return rotary_task.specialize(
        ELEMENT=memory_of(dtype),
        TABLE=memory_of(table),
        apply_rotary=pairs.specialize(
            load=load_as(dtype, table),
            load_table=load_of(table),
            rounded=rounded_of(table),
            store=_store_sum_of(table, dtype),
        ),
    )


@cache
def _store_sum_of(table: DType, dtype: DType) -> Unary:
    """Return the function that rounds a sum to the type of the tables and stores it as `dtype`."""
    store = cast_element_of(table, dtype)
    if dtype is table:  # storing rounds
        return store
    rounded = rounded_of(table)

    @register_jitable
    @named(f"sum_in_{table}_to_{dtype}")
    def store_sum(total):
        return store(rounded(total))

    return store_sum
