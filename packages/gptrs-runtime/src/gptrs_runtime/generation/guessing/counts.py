"""Counts of guessed tokens."""

from __future__ import annotations

from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class GuessCounts:
    """Tokens that were guessed ahead, and how many of them came true."""

    proposed: int = 0
    accepted: int = 0

    def __add__(self, other: GuessCounts) -> GuessCounts:
        return GuessCounts(self.proposed + other.proposed, self.accepted + other.accepted)
