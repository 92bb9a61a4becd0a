"""Kernel of `dot_general` for all types; `matmul.gemm` is fast."""

from __future__ import annotations

from functools import cache

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    Unary,
    cast_element_of,
    load_as,
    memory_of,
    rounded_of,
)
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import constant, offset, pointer, wrap_add, wrap_mul


@kernel
def contraction_task(
    lhs, rhs, out, geometry, task,
    *, OPERAND, RESULT, ZERO, load, add_product, store,
):  # fmt: skip
    """Compute one row of one batch; the result is contiguous.

    Geometry: the sizes m, n, k; the strides lm, lk, rn, rk; the number of batch axes; (size,
    stride) of each batch axis in lhs, then in rhs.
    """
    G = pointer(geometry, np.int64)
    M, N, K = G[0], G[1], G[2]
    lm, lk, rn, rk = G[3], G[4], G[5], G[6]
    rank = G[7]
    X, Y, Z = pointer(lhs, OPERAND), pointer(rhs, OPERAND), pointer(out, RESULT)
    batch = task // M
    m = task - batch * M
    left = offset(G, 8, rank, batch) + m * lm
    right = offset(G, 8 + 2 * rank, rank, batch)
    for n in range(N):
        total = ZERO
        for k in range(K):
            x = load(X[left + k * lk])
            y = load(Y[right + n * rn + k * rk])
            total = add_product(total, x, y)
        Z[task * N + n] = store(total)
    return 0


def contraction(operand: DType, accumulator: DType, result: DType) -> SpecializedKernel:
    """Return the kernel for any supported types."""
    return contraction_task.specialize(
        OPERAND=memory_of(operand),
        RESULT=memory_of(result),
        ZERO=constant(0, accumulator),
        load=load_as(operand, accumulator),
        add_product=_add_product_of(accumulator),
        store=cast_element_of(accumulator, result),
    )


@cache
def _add_product_of(dtype: DType) -> Unary:
    rounded = rounded_of(dtype)

    def add_integers(total, x, y):
        return rounded(wrap_add(total, wrap_mul(x, y)))

    def add(total, x, y):
        return rounded(total + x * y)

    return register_jitable(
        named(f"add_product_{dtype}")(add_integers if dtype.is_integer else add)
    )
