"""Uses of functionals that make a tensor from numbers, or select elements by index."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 2, 3, 4)

USES = (
    Use("arange", (), lambda: F.arange(2, 7), lambda: np.arange(2, 7)),
    Use("arange", (), lambda: F.arange(7, 1, -2, dtypes.si32), lambda: np.arange(7, 1, -2),
        "step", torch=lambda torch: torch.arange(7, 1, -2)),
    Use("arange", (), lambda: F.arange(0.5, 1.5, 0.25, dtypes.f32),
        lambda: np.array([0.5, 0.75, 1.0, 1.25]), "floats", small_floats=False,
        torch=lambda torch: torch.arange(0.5, 1.5, 0.25)),
    Use("arange", (), lambda: F.arange(0), lambda: np.arange(0), "none"),
    Use("full", (), lambda: F.full((2, 3), 2.5), lambda: np.full((2, 3), 2.5),
        small_floats=False, torch=lambda torch: torch.full((2, 3), 2.5)),
    Use("full", (), lambda: F.full((), -7, dtypes.si8), lambda: np.full((), -7), "rank 0"),
    Use("zeros", (), lambda: F.zeros((2, 0)), lambda: np.zeros((2, 0)), small_floats=False,
        torch=lambda torch: torch.zeros((2, 0))),
    Use("ones", (), lambda: F.ones((2, 3), dtypes.i1), lambda: np.ones((2, 3), bool)),
    *(
        Use("tril", (X,), lambda x, k=k: F.tril(x, k), lambda x, k=k: np.tril(x, k),
            f"diagonal {k}", torch=lambda torch, x, k=k: torch.tril(x, k))
        for k in (-1, 0, 2)
    ),
    *(
        Use("triu", (X,), lambda x, k=k: F.triu(x, k), lambda x, k=k: np.triu(x, k),
            f"diagonal {k}", torch=lambda torch, x, k=k: torch.triu(x, k))
        for k in (-4, 0, 1)
    ),
)  # fmt: skip
