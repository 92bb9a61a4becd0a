"""Positions that are not learned, as fairseq has them: sines, then cosines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sines:
    """`count` positions of a text; `first` is the number of its first one.

    The position `silent` has a vector of zeros, as padding has.
    """

    count: int
    first: int
    silent: int | None = None

    def table(self, width: int) -> np.ndarray:
        """Return the vectors f32 [count, C]; `width` C is at least 4."""
        half = width // 2
        places = np.arange(self.count, dtype=np.float32) + np.float32(self.first)
        steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(1e4) / (half - 1)))
        angles = places[:, None] * steps
        zeros = np.zeros((self.count, width - 2 * half), np.float32)
        found = np.concatenate([np.sin(angles), np.cos(angles), zeros], axis=1)
        if self.silent is not None and 0 <= self.silent - self.first < self.count:
            found[self.silent - self.first] = 0
        return found
