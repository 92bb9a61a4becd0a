"""Uses of the normalizations."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.testing.functional_use import Use
from gptrs.testing.running import normal


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w + b


USES = (
    Use("layer_norm", (normal(1, 3, 4), normal(5, 4), normal(6, 4)), F.layer_norm, _layer_norm,
        torch=lambda torch, x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)),
)  # fmt: skip
