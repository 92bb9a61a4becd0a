"""Uses of running totals, of sorting and of the largest elements."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
TIES = np.array([[2, 1, 2, 0], [1, 1, 1, 1]])
EDGES = np.array([0.0, np.inf, -np.inf, np.nan, -1.0, 2.0], np.float32)


def _top(x: np.ndarray, k: int) -> list[np.ndarray]:
    order = np.argsort(-x, -1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order]


USES = (
    Use("cumsum", (X,), lambda x: F.cumsum(x, 0), lambda x: np.cumsum(x, 0),
        torch=lambda torch, x: torch.cumsum(x, 0)),
    Use("cumsum", (X,), lambda x: F.cumsum(x, -1, reverse=True),
        lambda x: np.cumsum(x[:, ::-1], -1)[:, ::-1], "reverse",
        torch=lambda torch, x: x.flip(-1).cumsum(-1).flip(-1)),
    Use("cumsum", (TIES,), lambda x: F.cumsum(x, 1, exclusive=True),
        lambda x: np.cumsum(x, 1) - x, "exclusive, integers",
        torch=lambda torch, x: torch.cumsum(x, 1) - x),
    Use("cumsum", (X[:0],), lambda x: F.cumsum(x, 0), lambda x: x, "empty axis",
        torch=lambda torch, x: torch.cumsum(x, 0)),
    Use("cumprod", (X,), lambda x: F.cumprod(x, 1), lambda x: np.cumprod(x, 1),
        torch=lambda torch, x: torch.cumprod(x, 1)),
    Use("cummax", (EDGES,), lambda x: F.cummax(x, 0), np.maximum.accumulate,
        torch=lambda torch, x: torch.cummax(x, 0).values),
    Use("cummin", (X,), lambda x: F.cummin(x, 1), lambda x: np.minimum.accumulate(x, 1),
        torch=lambda torch, x: torch.cummin(x, 1).values),
    Use("sort", (X,), F.sort, np.sort, torch=lambda torch, x: torch.sort(x).values),
    Use("sort", (X,), lambda x: F.sort(x, 0, descending=True), lambda x: -np.sort(-x, 0),
        "descending", torch=lambda torch, x: torch.sort(x, 0, descending=True).values),
    Use("sort", (EDGES,), F.sort, np.sort, "edges",
        torch=lambda torch, x: torch.sort(x).values),
    Use("argsort", (X,), lambda x: F.argsort(x, 0), lambda x: np.argsort(x, 0),
        torch=lambda torch, x: torch.argsort(x, 0)),
    Use("argsort", (TIES,), F.argsort, lambda x: np.argsort(x, -1, kind="stable"), "ties",
        torch=lambda torch, x: torch.argsort(x, stable=True)),
    Use("argsort", (TIES,), lambda x: F.argsort(x, descending=True),
        lambda x: np.argsort(-x, -1, kind="stable"), "ties, descending",
        torch=lambda torch, x: torch.argsort(x, descending=True, stable=True)),
    Use("top_k", (X,), lambda x: F.top_k(x, 2), lambda x: _top(x, 2),
        torch=lambda torch, x: tuple(torch.topk(x, 2))),
    Use("top_k", (X,), lambda x: F.top_k(x, 3, axis=0, largest=False),
        lambda x: [np.sort(x, 0), np.argsort(x, 0)], "smallest",
        torch=lambda torch, x: tuple(torch.topk(x, 3, 0, largest=False))),
    Use("top_k", (TIES,), lambda x: F.top_k(x, 3), lambda x: _top(x, 3), "ties"),
    Use("top_k", (X,), lambda x: F.top_k(x, 0), lambda x: _top(x, 0), "none",
        torch=lambda torch, x: tuple(torch.topk(x, 0))),
)  # fmt: skip
