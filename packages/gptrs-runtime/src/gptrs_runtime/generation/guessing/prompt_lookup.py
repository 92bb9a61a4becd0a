"""Guesses from the text itself: what followed when its last tokens came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gptrs.quick_dataclass import dataclass
from gptrs_runtime.generation.guessing.odds import Odds

_LONG: Final = 3
_SHORT: Final = 2
_MOST_COMPARED: Final = 16
MOST_GUESSED: Final = 32


@dataclass(frozen=True)
class Match:
    """An earlier place where the last tokens stood: what follows it, and how likely that is."""

    start: int
    odds: Odds


class PromptLookup:
    """Finds the last tokens of a text earlier in it (Saxena 2023, "Prompt Lookup Decoding").

    The latest place where the last three tokens stood is taken, else the last two. How often
    guesses come true is counted for short, middle and long agreements each.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._places: dict[tuple[int, ...], int] = {}
        """After which token each sequence ended, but for the end of the text."""
        self._indexed = 0
        self._odds = (Odds(1, 2), Odds(2, 3), Odds(3, 3.5))

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._tokens += tokens

    def find(self) -> Match | None:
        """Return the place at which the text may go on as it does now; None for none."""
        tokens = self._tokens
        self._index()
        for size in (_LONG, _SHORT):
            start = self._places.get(tuple(tokens[-size:]))
            if start is not None:
                return Match(start, self._odds[self._kind(start)])
        return None

    def after(self, match: Match, count: int) -> list[int]:
        """Return the `count` tokens that follow a place; past the end of the text it repeats."""
        tokens, start = self._tokens, match.start
        period = len(tokens) - start
        return [tokens[start + number % period] for number in range(count)]

    def _index(self) -> None:
        """Note where all sequences ended that some token follows."""
        tokens = self._tokens
        for end in range(self._indexed, len(tokens)):
            for size in (_LONG, _SHORT):
                if end >= size:
                    self._places[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)

    def _kind(self, start: int) -> int:
        """Return whether a place agrees with the end of the text 0: briefly, 1: longer, 2: long."""
        tokens, length = self._tokens, _SHORT
        while length < min(_MOST_COMPARED, start):
            if tokens[start - length - 1] != tokens[len(tokens) - length - 1]:
                break
            length += 1
        return 0 if length <= _LONG else 1 if length < _MOST_COMPARED // 2 else 2
