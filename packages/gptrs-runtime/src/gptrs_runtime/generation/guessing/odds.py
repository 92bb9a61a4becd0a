"""How often guesses of one text come true, and what they have won or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_MEMORY: Final = 0.8
"""The weight of a guess after the next one of its kind."""
_RECOVERY: Final = 0.03
"""How far odds return to what they were at first with each token that is not guessed."""
_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Lengths of guesses that are weighed."""
_ALLOWANCE: Final = 1.0
"""Steps of one token that a text may lose by guessing, and for each of its tokens, the share:"""
_SHARE: Final = 0.01
_MOST_WON: Final = 4.0


class Odds:
    """The probability that a guessed token is right if all before it are: right ones of `tries`.

    Later guesses count more than earlier ones. `hits` of `tries` is what it is taken for at first.
    """

    def __init__(self, hits: float, tries: float) -> None:
        self._first = hits, tries
        self._hits, self._tries = hits, tries

    @property
    def each(self) -> float:
        """The probability."""
        return self._hits / self._tries

    def told(self, proposed: int, accepted: int) -> None:
        """Take in that of a guess the first `accepted` of `proposed` tokens were right."""
        self._hits = self._hits * _MEMORY + accepted
        self._tries = self._tries * _MEMORY + accepted + (accepted < proposed)

    def rest(self) -> None:
        """Take in that a token came without a guess where there could have been one."""
        hits, tries = self._first
        self._hits += (hits - self._hits) * _RECOVERY
        self._tries += (tries - self._tries) * _RECOVERY


class Balance:
    """Steps that guesses of a text have saved, less what they cost: it may fall so far only."""

    def __init__(self) -> None:
        self._won = 0.0

    def allows(self, tokens: int) -> bool:
        """Whether a text of so many new tokens may guess on."""
        return self._won > -(_ALLOWANCE + _SHARE * tokens)

    def told(self, saved: float, cost: float) -> None:
        """Take in what a guess has saved and cost, in steps of one token."""
        self._won = min(_MOST_WON, self._won + saved - cost)


def best_length(odds: float, most: int, texts: int, seconds: Callable[[int], float]) -> int:
    """Return the length of a guess with which a step gives most tokens a second; 0 for no guess.

    `texts` get a token each in any case; `seconds` is how long the step, and what makes the guess,
    take for so many guessed tokens.
    """
    best, rate = 0, texts / seconds(0)
    for length in _lengths(most):
        expected = texts + odds * (1 - odds**length) / (1 - odds) if odds < 1 else texts + length
        if expected / seconds(length) > rate:
            best, rate = length, expected / seconds(length)
    return best


def _lengths(most: int) -> Sequence[int]:
    return [*(size for size in _SIZES if size < most), *([most] if most else [])]
