"""Uses of matrix products and of lookup."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
ROWS = np.array([[2, 0], [4, 4]])
CHOICES = np.array([2, 0, 0, 2, 2])


def _einsum(
    equation: str, *operands: np.ndarray, label: str = "", small_floats: bool = True
) -> Use:
    """A sum of products, whose equation NumPy and torch read alike."""
    return Use(
        "einsum",
        operands,
        lambda *x: F.einsum(equation, *x),
        lambda *x: np.einsum(equation, *x),
        label or equation,
        small_floats,
        torch=lambda torch, *x: torch.einsum(equation, *x),
    )


USES = (
    _einsum("bij,bjk->bik", normal(1, 2, 3, 4), normal(2, 2, 4, 5) / 2),
    _einsum("ij,kj", normal(1, 3, 4), normal(2, 5, 4) / 2),
    _einsum("...i,i->...", X, normal(3, 4) / 2),
    _einsum("...ij,...jk->...ik", normal(1, 2, 1, 3, 4), normal(2, 5, 4, 2) / 2),
    _einsum("ii->i", normal(4, 3, 3)),
    _einsum("ij->ji", normal(4, 3, 2)),
    _einsum("ij,jk,kl->il", normal(1, 2, 3) / 2, normal(2, 3, 4) / 2, normal(3, 4, 2) / 2,
        small_floats=False),
    _einsum("i,j->ij", normal(5, 3), normal(6, 2)),
    _einsum("ij,kj->", np.arange(6).reshape(2, 3), np.arange(9).reshape(3, 3)),
    Use("embedding", (ROWS, normal(7, 5, 3)), F.embedding, lambda i, w: w[i],
        torch=lambda torch, i, w: torch.nn.functional.embedding(i, w)),
    Use("grouped_linear", (normal(3, 5, 5), normal(4, 4, 9, 5) / 2, CHOICES), F.grouped_linear,
        lambda x, w, g: np.einsum("ri,roi->ro", x, w[g])),
    Use("linear", (X, normal(8, 5, 4) / 2, normal(9, 5)), F.linear, lambda x, w, b: x @ w.T + b,
        torch=lambda torch, x, w, b: torch.nn.functional.linear(x, w, b)),
    Use("linear", (normal(1, 3, 64), normal(2, 32, 64) / 8, normal(3, 32)), F.linear,
        lambda x, w, b: x @ w.T + b, "many weights",
        torch=lambda torch, x, w, b: torch.nn.functional.linear(x, w, b)),
    Use("linear", (normal(1, 2, 1, 3, 4), normal(2, 4, 5) / 2, normal(3, 5)),
        lambda x, w, b: F.linear(x, w, b, "in_out"), lambda x, w, b: x @ w + b, "in_out, rank 4",
        torch=lambda torch, x, w, b: torch.nn.functional.linear(x, w.T, b)),
    Use("linear", (normal(1, 4), normal(2, 5, 4) / 2), F.linear, lambda x, w: w @ x,
        "a vector, no bias", torch=lambda torch, x, w: torch.nn.functional.linear(x, w)),
    Use("linear", (normal(1, 3, 0), normal(2, 5, 0), normal(3, 5)), F.linear,
        lambda x, w, b: x @ w.T + b, "no inputs",
        torch=lambda torch, x, w, b: torch.nn.functional.linear(x, w, b)),
    Use("matmul", (normal(1, 2, 1, 3, 4), normal(2, 5, 4, 2) / 2), F.matmul, np.matmul,
        torch=lambda torch, x, y: torch.matmul(x, y)),
)  # fmt: skip
