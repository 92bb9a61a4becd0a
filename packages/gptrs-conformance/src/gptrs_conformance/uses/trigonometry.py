"""Uses of trigonometric and hyperbolic functions and their inverses: ordinary values and edges."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
INSIDE = np.tanh(X)
ABOVE_1 = np.abs(normal(2, 3, 4)) + 1
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-3, 300.0], np.float32)
SIGNED = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)
Y_EDGES, X_EDGES = (part.reshape(-1) for part in np.meshgrid(SIGNED, SIGNED))


def _quietly(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def called(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return function(*arrays)

    return called


# name, the same in NumPy, ordinary values
FUNCTIONS = (
    ("tan", np.tan, X), ("sinh", np.sinh, X), ("cosh", np.cosh, X), ("asin", np.arcsin, INSIDE),
    ("acos", np.arccos, INSIDE), ("atan", np.arctan, X * 3), ("asinh", np.arcsinh, X),
    ("acosh", np.arccosh, ABOVE_1), ("atanh", np.arctanh, INSIDE),
)  # fmt: skip


def _uses(name: str, oracle: Callable[..., np.ndarray], x: np.ndarray) -> list[Use]:
    call, expected = getattr(F, name), _quietly(oracle)

    def torch(torch, x):  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        return getattr(torch, name)(x)

    return [
        Use(name, (x,), call, expected, torch=torch),
        Use(name, (x[:0],), call, expected, "empty", torch=torch),
        Use(name, (EDGES,), call, expected, "edges", torch=torch),
    ]


USES = (
    *(use for name, oracle, x in FUNCTIONS for use in _uses(name, oracle, x)),
    Use("atan2", (X, normal(2, 4)), F.atan2, np.arctan2,
        torch=lambda torch, y, x: torch.atan2(y, x)),
    Use("atan2", (Y_EDGES, X_EDGES), F.atan2, np.arctan2, "edges",
        torch=lambda torch, y, x: torch.atan2(y, x)),
    Use("atan2", (X,), lambda y: F.atan2(y, 2.0), lambda y: np.arctan2(y, 2.0), "a number"),
)  # fmt: skip
