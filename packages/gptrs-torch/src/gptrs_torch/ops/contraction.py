"""Products of matrices."""

from __future__ import annotations

import math

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import Number, is_number, scalar


@converts("mm", "bmm", "matmul", "mv", "dot")
def product(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices."""
    del node
    return F.matmul(x, y)


@converts("addmm", "baddbmm")
def addmm(
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


@converts("_cdist_forward")
def distances(node: Node, x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the p-norms of the differences of all rows of x and all rows of y."""
    del compute_mode
    return _norms(node, F.expand_dims(x, x.rank - 1) - F.expand_dims(y, y.rank - 2), p)


@converts("_pdist_forward")
def pdist(node: Node, x: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norms of the differences of all pairs of rows of x [rows, width]."""
    if not is_number(x.shape[0]):
        node.refuse("has a free count of rows")
    first, second = np.triu_indices(x.shape[0], 1)
    left, right = (F.take(x, primitives.constant(each), 0) for each in (first, second))
    return _norms(node, left - right, p)


def _norms(node: Node, differences: Tensor, p: float) -> Tensor:
    apart, last = F.abs(differences), differences.rank - 1
    if apart.shape[last] == 0:
        node.refuse("has rows without elements")
    if p == 0:
        return F.sum(F.cast(apart > 0.0, apart.dtype), last)
    if p == math.inf:
        return F.max(apart, last)
    if p == 1:
        return F.sum(apart, last)
    if p == 2:
        return F.sqrt(F.sum(apart * apart, last))
    return F.pow(F.sum(F.pow(apart, float(p)), last), 1 / p)
