"""Pooling the vectors of tokens to the vector of a text, as sentence-transformers does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gptrs.quick_dataclass import dataclass

_SMALLEST_SUM: Final = 1e-9
"""The least divisor of a sum of weights."""


@dataclass(frozen=True)
class Pooling:
    """The pooling modes of a text; the vectors of several are concatenated.

    `modes` are names in `MODES`. Without `include_prompt` the tokens of the prompt are left out.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True

    def __call__(self, vectors: np.ndarray, mask: np.ndarray, prompt: int = 0) -> np.ndarray:
        """Vectors f32 [B, T, D] and i1 [B, T], true where a token is -> f32 [B, D * modes].

        `prompt` is how many tokens of the prompt each text begins with. A text without
        a token that is left gives zeros. Sums are made in f64.
        """
        if not self.include_prompt:
            mask = mask.copy()
            mask[:, :prompt] = False
        wide = vectors.astype(np.float64)
        parts = [MODES[mode](wide, mask) for mode in self.modes]
        return np.concatenate(parts, axis=-1).astype(np.float32)


_Weights = Callable[[np.ndarray], np.ndarray]
"""From the mask i1 [B, T] to how much each token counts, f64 [B, T]."""


def _weighted(weights: _Weights) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def pool(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.matmul(weights(mask)[:, np.newaxis], vectors)[:, 0]  # (B, 1, T) (B, T, D)

    return pool


def _first(mask: np.ndarray) -> np.ndarray:
    return (mask & (np.cumsum(mask, axis=1) == 1)).astype(np.float64)


def _last(mask: np.ndarray) -> np.ndarray:
    return _first(mask[:, ::-1])[:, ::-1]


def _equal(mask: np.ndarray) -> np.ndarray:
    return mask / np.maximum(_count(mask), _SMALLEST_SUM)


def _equal_by_root(mask: np.ndarray) -> np.ndarray:
    return mask / np.sqrt(np.maximum(_count(mask), _SMALLEST_SUM))


def _by_position(mask: np.ndarray) -> np.ndarray:
    """Token i counts i + 1 times, be there a prompt that is left out or not (Muennighoff 2022)."""
    weights = mask * np.arange(1.0, mask.shape[1] + 1)
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), _SMALLEST_SUM)


def _count(mask: np.ndarray) -> np.ndarray:
    return mask.sum(axis=1, keepdims=True, dtype=np.float64)


def _largest(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    found = np.where(mask[:, :, np.newaxis], vectors, -np.inf).max(axis=1)
    return np.where(mask.any(axis=1, keepdims=True), found, 0.0)


MODES: Final[dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "cls": _weighted(_first),
    "max": _largest,
    "mean": _weighted(_equal),
    "mean_sqrt_len_tokens": _weighted(_equal_by_root),
    "weightedmean": _weighted(_by_position),
    "lasttoken": _weighted(_last),
}
"""By the name that sentence-transformers gives it, in the order in which it concatenates them.

Each takes vectors f64 [B, T, D] and the mask i1 [B, T], and gives f64 [B, D].
"""
