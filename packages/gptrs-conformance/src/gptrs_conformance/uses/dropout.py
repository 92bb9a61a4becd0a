"""Uses of dropout."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.cases.quantization import uniform, words
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 7)
SEED = np.array([11, 5], np.uint64)


def drawn(seed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return what `rng_uniform` gives in f32."""
    count = int(np.prod(shape))
    found = words((int(seed[0]), int(seed[1])), count, dtypes.f32)
    return np.array([uniform(word, dtypes.f32) for word in found]).reshape(shape)


USES = (
    Use("dropout", (X,), lambda x: F.dropout(x, 0.4), lambda x: x,
        torch=lambda torch, x: torch.nn.functional.dropout(x, 0.4, training=False)),
    Use("dropout", (X, SEED), lambda x, seed: F.dropout(x, 0.4, seed, training=True),
        lambda x, seed: np.where(drawn(seed, x.shape) >= 0.4, x / 0.6, 0), "training"),
)  # fmt: skip
