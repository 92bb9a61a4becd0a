"""Uses of reading and writing at positions."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from functools import partial

import numpy as np

from gptrs import functionals as F
from gptrs.capture.primitives.structure import ScatterKind
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
CUBE = normal(2, 2, 3, 4)
ROWS = np.array([[2, 0], [1, 1]])
INDICES = np.array([[0, 2, 1], [3, 3, 0]])
UPDATES = normal(3, 2, 3)

KEYS = {
    "int": 1,
    "negative int": -1,
    "slice": slice(1, None),
    "ints and slices": (0, slice(None, None, 2), -1),
    "all ints": (1, 2, 3),
    "new axes": (None, slice(None), None, 0),
    "ellipsis": (..., 1),
    "ellipsis between": (0, ..., slice(1, 3)),
    "ellipsis for nothing": (0, 1, ..., 2),
    "backward": (slice(None, None, -1), ..., slice(3, 0, -2)),
    "nothing": (slice(0, 0),),
    "no entries": (),
}
KINDS: dict[ScatterKind, str] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(x: np.ndarray, updates: np.ndarray, kind: str) -> np.ndarray:
    """Along axis 1 of x at INDICES."""
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    result = x.copy()
    for (row, column), position in np.ndenumerate(INDICES):
        new, old = updates[row, column], result[row, position]
        result[row, position] = new if kind == "replace" else ufunc[kind](old, new)
    return result


USES = (
    Use("take", (X, ROWS), F.take, lambda x, i: x[i], torch=lambda torch, x, i: x[i]),
    Use("take", (CUBE, ROWS), lambda x, i: F.take(x, i, 1), lambda x, i: np.take(x, i, 1),
        "middle axis", torch=lambda torch, x, i: x[:, i]),
    Use("take", (CUBE, np.array(3)), lambda x, i: F.take(x, i, -1), lambda x, i: x[..., 3],
        "rank 0, last axis", torch=lambda torch, x, i: x[..., i]),
    Use("gather", (X[:2], INDICES), lambda x, i: F.gather(x, i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        torch=lambda torch, x, i: torch.gather(x, 1, i)),
    Use("gather", (X, ROWS), lambda x, i: F.gather(x, i, 0),
        lambda x, i: np.take_along_axis(x[:, :2], i, 0), "a part of the other axis",
        torch=lambda torch, x, i: torch.gather(x, 0, i)),
    Use("scatter", (X, INDICES, UPDATES), lambda x, i, u: F.scatter(x, i, u, 1),
        lambda x, i, u: _scattered(x, u, "replace")),
    *(
        Use("scatter", (X, INDICES, UPDATES), partial(F.scatter, axis=-1, kind=kind),
            lambda x, i, u, k=kind: _scattered(x, u, k), kind,
            torch=lambda torch, x, i, u, w=word: torch.scatter_reduce(x, 1, i, u, w))
        for kind, word in KINDS.items()
    ),
    Use("scatter", (X, INDICES), lambda x, i: F.scatter(x, i, 9, 1),
        lambda x, i: _scattered(x, np.full((2, 3), 9.0), "replace"), "a number",
        torch=lambda torch, x, i: torch.scatter(x, 1, i, 9.0)),
    *(
        Use("index", (CUBE,), lambda x, k=key: x[k], lambda x, k=key: x[k], label)
        for label, key in KEYS.items()
    ),
    Use("index", (X, ROWS), lambda x, i: x[i], lambda x, i: x[i], "a tensor",
        torch=lambda torch, x, i: x[i]),
    Use("index", (CUBE, np.array([1, 0, 1])), lambda x, i: x[i, ..., 1:3],
        lambda x, i: x[i, ..., 1:3], "a tensor and a slice",
        torch=lambda torch, x, i: x[i, ..., 1:3]),
    Use("index", (CUBE, np.array([1, 0, 1])), lambda x, i: x[i, 2], lambda x, i: x[i, 2],
        "a tensor and an int", torch=lambda torch, x, i: x[i, 2]),
)  # fmt: skip
