"""Uses of attention, its masks and its cache."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math

import numpy as np

from gptrs import functionals as F
from gptrs.testing.functional_use import Use
from gptrs.testing.running import normal
from gptrs.testing.uses.activation import softmax


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    return softmax(np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)) @ v


def _updated(cache: np.ndarray, new: np.ndarray, position: np.ndarray) -> np.ndarray:
    after = cache.copy()
    after[:, :, int(position) : int(position) + new.shape[2]] = new
    return after


HEADS = tuple(normal(seed, 2, 2, 4, 8) for seed in (3, 4, 5))
AT = np.array(3)

USES = (
    Use("attention", HEADS, lambda q, k, v: F.attention(q, k, v, F.causal_mask(4, 4)), _attention,
        torch=lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True)),
    Use("causal_mask", (), lambda: F.causal_mask(2, 4, 1), lambda: np.tri(2, 4, 1, bool)),
    Use("update_cache", (normal(1, 1, 2, 6, 3), normal(2, 1, 2, 2, 3), AT),
        F.update_cache, _updated),
)  # fmt: skip
