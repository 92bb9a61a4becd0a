"""Uses of what makes, moves and converts elements."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs.testing.functional_use import Use
from gptrs.testing.running import normal

X, Y = normal(1, 3, 4), normal(2, 3, 4)

USES = (
    Use("arange", (), lambda: F.arange(5, 2), lambda: np.arange(2, 7)),
    Use("reshape", (X,), lambda x: F.reshape(x, (2, -1)), lambda x: x.reshape(2, 6)),
    Use("transpose", (normal(3, 2, 2, 4, 8),), lambda x: F.transpose(x, (0, 2, 1, 3)),
        lambda x: x.transpose(0, 2, 1, 3)),
    Use("cast", (X * 10,), lambda x: F.cast(x, dtypes.si32), lambda x: np.trunc(x).astype(int)),
    Use("slice_axis", (X,), lambda x: F.slice_axis(x, -1, 1, 2), lambda x: x[:, 1:3]),
    Use("split", (X,), lambda x: F.split(x, 2), lambda x: [x[:, :2], x[:, 2:]]),
    Use("concat", (X, Y), lambda x, y: F.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1)),
)  # fmt: skip
