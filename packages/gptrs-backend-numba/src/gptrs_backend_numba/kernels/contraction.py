"""Source of the kernel of `dot_general` for all types; `matmul.gemm` is fast.

A task is one row of one batch. It takes the addresses of lhs, rhs and result and of a geometry:
the sizes m, n, k; the strides lm, lk, rn, rk; the number of batch axes; (size, stride) of each
batch axis in lhs, then in rhs; and the number of the task. The result is contiguous.
"""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import (
    cast_element,
    load,
    rounded,
    to_accumulator,
    typed_pointer,
)

_ANY_TYPE = """
# dot_general of {operand} summed in {accumulator}, returned as {result}
def kernel(lhs, rhs, out, geometry, task):
    G = pointer(geometry, np.int64)
    M, N, K = G[0], G[1], G[2]
    lm, lk, rn, rk = G[3], G[4], G[5], G[6]
    rank = G[7]
    X, Y, Z = {X}, {Y}, {Z}
    batch = task // M
    m = task - batch * M
    left = offset(G, 8, rank, batch) + m * lm
    right = offset(G, 8 + 2 * rank, rank, batch)
    for n in range(N):
        total = ZERO
        for k in range(K):
            x = {x}
            y = {y}
            total = {total}
        Z[task * N + n] = {z}
    return 0
"""


def any_type_source(operand: DType, accumulator: DType, result: DType) -> str:
    """Any supported types, a row a task; the namespace must give the accumulator's `ZERO`."""
    exact = accumulator.is_integer
    products = "wrap_add(total, wrap_mul(x, y))" if exact else "total + x * y"
    return _ANY_TYPE.format(
        operand=operand,
        accumulator=accumulator,
        result=result,
        X=typed_pointer("lhs", operand),
        Y=typed_pointer("rhs", operand),
        Z=typed_pointer("out", result),
        x=to_accumulator(load(operand, "X[left + k * lk]"), operand, accumulator),
        y=to_accumulator(load(operand, "Y[right + n * rn + k * rk]"), operand, accumulator),
        total=rounded(accumulator, products),
        z=cast_element("total", accumulator, result),
    )
