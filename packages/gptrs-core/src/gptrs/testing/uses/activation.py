"""Uses of the activations and of softmax."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math

import numpy as np

from gptrs import functionals as F
from gptrs.testing.functional_use import Use
from gptrs.testing.running import normal


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)


X = normal(1, 3, 4)

USES = (
    Use("relu", (X,), F.relu, lambda x: np.maximum(x, 0),
        torch=lambda torch, x: torch.relu(x)),
    Use("tanh", (X,), F.tanh, np.tanh, torch=lambda torch, x: torch.tanh(x)),
    Use("silu", (X,), F.silu, lambda x: x / (1 + np.exp(-x)),
        torch=lambda torch, x: torch.nn.functional.silu(x)),
    Use("gelu", (X,), F.gelu, lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
        torch=lambda torch, x: torch.nn.functional.gelu(x)),
    Use("softmax", (X,), F.softmax, softmax, torch=lambda torch, x: torch.softmax(x, -1)),
)  # fmt: skip
