"""Uses of arithmetic with broadcasting."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X, Y = normal(1, 3, 4), normal(2, 3, 4)
POSITIVE = np.abs(Y) + 1
WHOLE = np.array([[-7, 7, -6], [6, 0, -1]])
BY = np.array([3, -3, 4])
# Quotients that are far from integers, so that no rounding decides.
UNEVEN = np.array([-7.25, 7.25, -0.75, 5.5, 0.0], np.float32)
DIVISORS = np.array([2.0, -2.0, 3.0, 4.0, -1.0], np.float32)
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -2.5, 7.5], np.float32)


USES = (
    Use("add", (X, Y), F.add, lambda x, y: x + y, torch=lambda torch, x, y: x + y),
    Use("add", (X, normal(3)), F.add, lambda x, y: x + y, "a scalar",
        torch=lambda torch, x, y: x + y),
    Use("add", (X,), lambda x: F.add(2, x), lambda x: 2 + x, "a number",
        torch=lambda torch, x: 2 + x),
    Use("add", (normal(3, 0, 1), normal(4, 4)), F.add, lambda x, y: x + y, "empty",
        torch=lambda torch, x, y: x + y),
    Use("sub", (X, normal(3, 4)), F.sub, lambda x, y: x - y, torch=lambda torch, x, y: x - y),
    Use("sub", (WHOLE, BY), F.sub, lambda x, y: x - y, "integers",
        torch=lambda torch, x, y: x - y),
    Use("mul", (X, normal(4, 3, 1)), F.mul, lambda x, y: x * y, torch=lambda torch, x, y: x * y),
    Use("mul", (normal(5, 2, 1, 3), normal(6, 4, 1)), F.mul, lambda x, y: x * y, "both expand",
        torch=lambda torch, x, y: x * y),
    Use("div", (X, POSITIVE), F.div, lambda x, y: x / y, torch=lambda torch, x, y: x / y),
    Use("div", (WHOLE, BY), F.div, lambda x, y: np.trunc(x / y).astype(int), "integers",
        torch=lambda torch, x, y: torch.div(x, y, rounding_mode="trunc")),
    Use("fmod", (UNEVEN, DIVISORS), F.fmod, np.fmod,
        torch=lambda torch, x, y: torch.fmod(x, y)),
    Use("fmod", (WHOLE, BY), F.fmod, np.fmod, "integers",
        torch=lambda torch, x, y: torch.fmod(x, y)),
    Use("remainder", (UNEVEN, DIVISORS), F.remainder, np.mod,
        torch=lambda torch, x, y: torch.remainder(x, y)),
    Use("remainder", (WHOLE, BY), F.remainder, np.mod, "integers",
        torch=lambda torch, x, y: torch.remainder(x, y)),
    Use("remainder", (np.array([-1.0, 1.0, 2.0], np.float32),
                      np.array([np.inf, -np.inf, np.inf], np.float32)), F.remainder,
        lambda x, y: np.array([np.inf, -np.inf, 2.0]), "by infinity",
        torch=lambda torch, x, y: torch.remainder(x, y)),
    Use("floor_divide", (UNEVEN, DIVISORS), F.floor_divide, np.floor_divide,
        torch=lambda torch, x, y: torch.floor_divide(x, y)),
    Use("floor_divide", (WHOLE, BY), F.floor_divide, np.floor_divide, "integers",
        torch=lambda torch, x, y: torch.floor_divide(x, y)),
    Use("floor_divide", (np.array([1.0, -1.0, -2.5], np.float32),
                         np.array([0.0, 0.0, np.inf], np.float32)), F.floor_divide,
        lambda x, y: np.array([np.inf, -np.inf, -1.0]), "by zero and infinity",
        torch=lambda torch, x, y: torch.floor_divide(x, y)),
    Use("floor_divide", (np.array([1.0, 0.3, 6.0], np.float32),
                         np.array([0.1, 0.1, 0.2], np.float32)), F.floor_divide,
        lambda x, y: np.floor_divide(x, y), "close to an integer", small_floats=False,
        torch=lambda torch, x, y: torch.floor_divide(x, y)),
    Use("pow", (POSITIVE, Y), F.pow, np.power, torch=lambda torch, x, y: torch.pow(x, y)),
    Use("pow", (X,), lambda x: F.pow(x, 3), lambda x: x**3, "a number",
        torch=lambda torch, x: x**3),
    Use("pow", (np.array([np.nan, 1.0, 0.0, -2.0], np.float32),
                np.array([0.0, np.nan, 0.0, 2.0], np.float32)), F.pow,
        lambda x, y: np.array([1.0, 1.0, 1.0, 4.0]), "IEEE ones",
        torch=lambda torch, x, y: torch.pow(x, y)),
    Use("pow", (WHOLE,), lambda x: F.pow(x, 5), lambda x: x**5, "integers",
        torch=lambda torch, x: x**5),
    Use("pow", (WHOLE,), lambda x: F.pow(x, 0), np.ones_like, "integers to the 0",
        torch=lambda torch, x: x**0),
    Use("maximum", (X, normal(3, 4)), F.maximum, np.maximum,
        torch=lambda torch, x, y: torch.maximum(x, y)),
    Use("maximum", (EDGES,), lambda x: F.maximum(x, 1.5), lambda x: np.maximum(x, 1.5), "edges",
        torch=lambda torch, x: torch.maximum(x, torch.tensor(1.5))),
    Use("minimum", (X, Y), F.minimum, np.minimum,
        torch=lambda torch, x, y: torch.minimum(x, y)),
    Use("minimum", (EDGES,), lambda x: F.minimum(x, 1.5), lambda x: np.minimum(x, 1.5), "edges",
        torch=lambda torch, x: torch.minimum(x, torch.tensor(1.5))),
    Use("clamp", (X,), lambda x: F.clamp(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5),
        torch=lambda torch, x: torch.clamp(x, -0.5, 0.5)),
    Use("clamp", (X, normal(3, 4), normal(4, 3, 1)), F.clamp,
        lambda x, low, high: np.minimum(np.maximum(x, low), high), "tensors",
        torch=lambda torch, x, low, high: torch.clamp(x, low, high)),
    Use("clamp", (EDGES,), lambda x: F.clamp(x, high=1), lambda x: np.minimum(x, 1), "high, edges",
        torch=lambda torch, x: torch.clamp(x, max=1)),
    Use("clamp", (WHOLE,), lambda x: F.clamp(x, low=-2), lambda x: np.maximum(x, -2),
        "low, integers", torch=lambda torch, x: torch.clamp(x, min=-2)),
)  # fmt: skip
