"""Products of matrices."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts


@converts("MatMul")
def matmul(node: Node, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return the product of matrices, broadcast over the axes before them."""
    del node
    return product(lhs, rhs)


def product(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return `np.matmul` of two tensors."""
    if lhs.rank >= 2 and rhs.rank == 2:
        return primitives.dot_general(lhs, rhs, ([lhs.rank - 1], [0]))
    if lhs.rank == rhs.rank == 1:
        return primitives.dot_general(lhs, rhs, ([0], [0]))
    return F.matmul(lhs, rhs)


@converts("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Return `alpha * A B + beta * C`, with A and B turned where asked for."""
    contract = ([0 if node.flag("transA") else 1], [1 if node.flag("transB") else 0])
    result = primitives.dot_general(a, b, contract)
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if alpha != 1.0:
        result = result * alpha if result.dtype.is_float else result * int(alpha)
    if c is None or beta == 0.0:
        return result
    return result + (c if beta == 1.0 else c * beta if c.dtype.is_float else c * int(beta))


@converts("MatMulInteger")
def matmul_integer(
    node: Node,
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
) -> Tensor:
    """Return the si32 product of integers without their zero points."""
    del node
    left, right = F.cast(a, dtypes.si32), F.cast(b, dtypes.si32)
    if a_zero is not None:
        zero = F.cast(a_zero, dtypes.si32)
        left = left - (F.expand_dims(zero, -1) if zero.rank == 1 and zero.size > 1 else zero)
    if b_zero is not None:
        right = right - F.cast(b_zero, dtypes.si32)
    return product(left, right)


@converts("Det")
def determinant(node: Node, x: Tensor) -> Tensor:
    """Return the determinants of matrices up to 3 x 3 by their definition."""
    size = x.shape[-1]
    if size > 3:
        node.refuse(f"takes the determinant of {size} x {size} matrices, at most 3 x 3 are done")
    rows = [F.squeeze(row, -2) for row in F.split(x, size, -2)]
    cells = [[F.squeeze(cell, -1) for cell in F.split(row, size, -1)] for row in rows]
    if size == 1:
        return cells[0][0]
    if size == 2:
        return cells[0][0] * cells[1][1] - cells[0][1] * cells[1][0]
    terms = [
        cells[0][i]
        * (
            cells[1][(i + 1) % 3] * cells[2][(i + 2) % 3]
            - cells[1][(i + 2) % 3] * cells[2][(i + 1) % 3]
        )
        for i in range(3)
    ]
    return terms[0] + terms[1] + terms[2]
