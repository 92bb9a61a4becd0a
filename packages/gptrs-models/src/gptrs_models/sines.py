"""Positions as fairseq counts them, and its sinusoidal embeddings."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from gptrs import functionals as F
from gptrs.api.models import Tensor
from gptrs.api.programs import dtypes


def counted_positions(tokens: Tensor, padding: int, before: Tensor | int = 0) -> Tensor:
    """Return the position of each token: int [B, T] -> si64 [B, T].

    Tokens are counted from 1 on, after `before` earlier ones; the token `padding` is not counted,
    and has position 0.
    """
    counted = F.cast(F.not_equal(tokens, padding), dtypes.si64)
    return (F.cumsum(counted, 1) + before) * counted


class Sines(Struct, frozen=True):
    """Sinusoidal embeddings of `count` positions, starting at position `first`.

    The position `silent` (padding) has a zero vector.
    """

    count: int
    first: int
    silent: int | None = None

    def table(self, width: int) -> np.ndarray:
        """Return the vectors f32 [count, C]; `width` C is at least 4."""
        half = width // 2
        positions = np.arange(self.count, dtype=np.float32) + np.float32(self.first)
        steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(1e4) / (half - 1)))
        angles = positions[:, None] * steps
        zeros = np.zeros((self.count, width - 2 * half), np.float32)
        found = np.concatenate([np.sin(angles), np.cos(angles), zeros], axis=1)
        if self.silent is not None and 0 <= self.silent - self.first < self.count:
            found[self.silent - self.first] = 0
        return found
