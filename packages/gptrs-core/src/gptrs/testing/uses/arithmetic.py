"""Uses of arithmetic with broadcasting."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.testing.functional_use import Use
from gptrs.testing.running import normal

X, Y = normal(1, 3, 4), normal(2, 3, 4)

USES = (
    Use("add", (X, Y), F.add, lambda x, y: x + y, torch=lambda torch, x, y: x + y),
    Use("sub", (X, normal(3, 4)), F.sub, lambda x, y: x - y, torch=lambda torch, x, y: x - y),
    Use("mul", (X, normal(4, 3, 1)), F.mul, lambda x, y: x * y, torch=lambda torch, x, y: x * y),
    Use("div", (X, np.abs(Y) + 1), F.div, lambda x, y: x / y, torch=lambda torch, x, y: x / y),
    Use("neg", (X,), F.neg, lambda x: -x, torch=lambda torch, x: -x),
)
