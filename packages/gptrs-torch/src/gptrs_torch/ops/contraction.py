"""Products of matrices."""

from __future__ import annotations

from gptrs.api import Tensor
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import Number, scalar


@converts("mm", "bmm", "matmul", "mv", "dot")
def product(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices."""
    del node
    return F.matmul(x, y)


@converts("addmm", "baddbmm")
def added_product(
    node: Node, bias: Tensor, x: Tensor, y: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return `beta * bias + alpha * x y`."""
    made = F.matmul(x, y)
    made = made if alpha == 1 else made * scalar(alpha, node.dtype)
    if beta == 0:
        return made
    return F.add(made, bias if beta == 1 else bias * scalar(beta, node.dtype))


@converts("linear")
def linear(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x weight^T + bias`."""
    del node
    return F.linear(x, weight, bias)
