"""Sources of the kernels of `dot_general`: matrix-vector and matrix-matrix products in batches.

Each does one task: a block of columns of one batch. It takes the addresses of lhs, rhs and result
and of a geometry: the sizes m, n, k; the strides lm, lk, rn, rk; the number of batch axes; (size,
stride) of each batch axis in lhs, then in rhs; and the number of the task. The result is
contiguous. The borders of tasks depend on sizes alone, and the order of each sum on k alone, so
the number of threads never shows in a result.
"""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs_backend_numba.kernels.registers import (
    cast,
    load,
    rounded,
    store,
    to_accumulator,
    typed_pointer,
)
from gptrs_backend_numba.kernels.vector import WIDTH

_HEAD = """
def kernel(lhs, rhs, out, geometry, task):
    G = pointer(geometry, np.int64)
    M, N, K = G[0], G[1], G[2]
    lm, lk, rn, rk = G[3], G[4], G[5], G[6]
    rank = G[7]
    blocks = (N + BLOCK - 1) // BLOCK
    batch = task // blocks
    first = (task - batch * blocks) * BLOCK
    last = min(first + BLOCK, N)
    L = lhs + 4 * offset(G, 8, rank, batch)
    R = rhs + 4 * offset(G, 8 + 2 * rank, rank, batch) + 4 * first * rn
    O = out + 4 * (batch * M * N + first)
"""

_COLUMNS = (
    _HEAD
    + """
    n = first
    while n + 8 * WIDTH <= last:
        tile_1x8(L, 0, lk, R, rk, O, 0, K)
        n, R, O = n + 8 * WIDTH, R + 32 * WIDTH, O + 32 * WIDTH
    while n + 4 * WIDTH <= last:
        tile_1x4(L, 0, lk, R, rk, O, 0, K)
        n, R, O = n + 4 * WIDTH, R + 16 * WIDTH, O + 16 * WIDTH
    while n + WIDTH <= last:
        tile_1x1(L, 0, lk, R, rk, O, 0, K)
        n, R, O = n + WIDTH, R + 4 * WIDTH, O + 4 * WIDTH
    X, Y, Z = pointer(L, np.float32), pointer(R, np.float32), pointer(O, np.float32)
    for j in range(last - n):
        total = np.float32(0.0)
        for k in range(K):
            total = fma(X[k * lk], Y[k * rk + j], total)
        Z[j] = total
    return 0
"""
)

_ROWS = (
    _HEAD
    + """
    whole = K - K % (2 * WIDTH)
    X, Y, Z = pointer(L, np.float32), pointer(R, np.float32), pointer(O, np.float32)
    n = first
    while whole > 0 and n + 4 <= last:
        dot_4_rows(L, rhs_at(R, n - first, rn), rn, O + 4 * (n - first), whole)
        n += 4
    while whole > 0 and n < last:
        dot_1_row(L, rhs_at(R, n - first, rn), rn, O + 4 * (n - first), whole)
        n += 1
    for j in range(last - first):
        total = Z[j] if whole > 0 else np.float32(0.0)
        for k in range(whole, K):
            total = fma(X[k], Y[j * rn + k], total)
        Z[j] = total
    return 0
""".replace("rhs_at(R, n - first, rn)", "R + 4 * (n - first) * rn")
)

_MATRIX = (
    _HEAD
    + """
    panel = np.empty(K * BLOCK, np.float32)
    edge = np.empty(TILE_ROWS * BLOCK, np.float32)
    P, E = panel.ctypes.data, edge.ctypes.data
    Y, Z = pointer(R, np.float32), pointer(O, np.float32)
    width = last - first
    for k in range(K):
        for j in range(width):
            panel[k * BLOCK + j] = Y[k * rk + j * rn]
        for j in range(width, BLOCK):
            panel[k * BLOCK + j] = 0.0
    m = np.int64(0)
    while m < M:
        rows = TILE_ROWS if m + TILE_ROWS <= M else (4 if m + 4 <= M else 1)
        whole = width == BLOCK
        to = O + 4 * m * N if whole else E
        om = N if whole else BLOCK
        A = L + 4 * m * lm
        if rows == TILE_ROWS:
            tile_full(A, lm, lk, P, BLOCK, to, om, K)
        elif rows == 4:
            tile_4x2(A, lm, lk, P, BLOCK, to, om, K)
        else:
            tile_1x2(A, lm, lk, P, BLOCK, to, om, K)
        if not whole:
            for i in range(rows):
                for j in range(width):
                    Z[(m + i) * N + j] = edge[i * BLOCK + j]
        m += rows
    panel[0] = edge[0]  # both must outlive the tiles, which know them by address only
    return 0
"""
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


def column_source(block: int) -> str:
    """One row times matrices whose rows are contiguous (rn = 1), `block` columns a task; f32."""
    return _COLUMNS.replace("BLOCK", str(block))


def row_source(block: int) -> str:
    """One row times transposed matrices (lk = rk = 1), `block` results a task; f32."""
    return _ROWS.replace("BLOCK", str(block))


MATRIX_BLOCK = 2 * WIDTH
"""Columns a task of `MATRIX_SOURCE`."""
MATRIX_SOURCE = _MATRIX.replace("BLOCK", str(MATRIX_BLOCK))
"""Any number of rows times any strided matrix, packed two vectors wide; f32, k at least 1."""


def any_type_source(operand: DType, accumulator: DType, result: DType) -> str:
    """Any supported types, a row a task; the namespace must give the accumulator's `ZERO`."""
    products = "total + x * y" if accumulator.is_float else "wrap_add(total, wrap_mul(x, y))"
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
        z=store(result, cast("total", accumulator, result)),
    )
