"""Random choices that a seed fixes once and for all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Dice:
    """A source of choices: the same for the same seed on every platform and Python version.

    Python promises that of `random.Random.random` alone, so that all else is made of it.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self._random.random() < probability

    def below(self, limit: int) -> int:
        """Return a whole number in [0, limit)."""
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return a whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def bits(self, count: int) -> int:
        """Return a whole number of that many random bits."""
        value = 0
        for _ in range(-(-count // 32)):
            value = value << 32 | self.below(2**32)
        return value & ((1 << count) - 1)

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[Item], weights: Sequence[int]) -> Item:
        """Return one of the items, each as often as its weight says."""
        ticket = self.below(sum(weights))
        for item, weight in zip(items, weights, strict=True):
            ticket -= weight
            if ticket < 0:
                return item
        raise ValueError("weights must be whole numbers, not all of them 0")

    def some(self, items: Sequence[Item], probability: float = 0.5) -> list[Item]:
        """Return each of the items that often, in their order."""
        return [item for item in items if self.chance(probability)]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Return the items in any order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]
