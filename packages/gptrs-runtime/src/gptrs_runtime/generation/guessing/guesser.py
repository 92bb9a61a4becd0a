"""The guesses of a step: which texts get one, its length, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import Struct

from gptrs.spans import span
from gptrs_runtime.generation.guessing.draft import (
    Balance,
    DraftText,
    HeadText,
    Odds,
    Wish,
    best_length,
    drafted,
)
from gptrs_runtime.generation.step_times import StepTimes

if TYPE_CHECKING:
    from gptrs.nn.causal_lm import Layers

# Counts of guessed tokens.


class GuessCounts(Struct, frozen=True):
    """Numbers of guessed tokens and of accepted ones."""

    proposed: int = 0
    accepted: int = 0

    def __add__(self, other: GuessCounts) -> GuessCounts:
        return GuessCounts(self.proposed + other.proposed, self.accepted + other.accepted)


# Guesses from the text itself: what followed an earlier occurrence of its last tokens.


_LONG: Final = 3
_SHORT: Final = 2
"""Lengths of the sequences that are looked up."""
_MOST_COMPARED: Final = 16
"""Most tokens compared to classify a match by length."""
MOST_GUESSED: Final = 32
"""The longest guess from a text."""


class Match(Struct, frozen=True):
    """An earlier occurrence of the last tokens: its position, and the odds that the same tokens
    follow.
    """

    start: int
    odds: Odds


class PromptLookup:
    """Finds the last tokens of a text earlier in it (Saxena 2023, "Prompt Lookup Decoding").

    Uses the latest earlier occurrence of the last three tokens, else of the last two. Acceptance is
    counted separately for short, medium and long matches.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._positions: dict[tuple[int, ...], int] = {}
        """The position after each indexed sequence, except the one at the end of the text."""
        self._indexed = 0
        # Initial odds 1/2, 2/3 and 6/7 for short, longer and long matches.
        self._odds = (Odds(1, 2), Odds(2, 3), Odds(3, 3.5))

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._tokens += tokens

    def find(self) -> Match | None:
        """Return the position after an earlier occurrence of the end of the text, or None."""
        tokens = self._tokens
        self._index()
        # Longer sequence first: its continuation is likelier.
        for size in (_LONG, _SHORT):
            start = self._positions.get(tuple(tokens[-size:]))
            if start is not None:
                return Match(start, self._odds[self._kind(start)])
        return None

    def after(self, match: Match, count: int) -> list[int]:
        """Return the `count` tokens from a position on, repeating past the end of the text."""
        tokens, start = self._tokens, match.start
        # Past the end, assume that the repetition continues with the same period.
        period = len(tokens) - start
        return [tokens[start + number % period] for number in range(count)]

    def _index(self) -> None:
        """Index all sequences that are followed by a token."""
        tokens = self._tokens
        for end in range(self._indexed, len(tokens)):
            for size in (_LONG, _SHORT):
                if end >= size:
                    self._positions[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)

    def _kind(self, start: int) -> int:
        """Return the class of a match by its length: 0 short, 1 longer, 2 long."""
        tokens, length = self._tokens, _SHORT
        while length < min(_MOST_COMPARED, start):
            if tokens[start - length - 1] != tokens[len(tokens) - length - 1]:
                break
            length += 1
        return 0 if length <= _LONG else 1 if length < _MOST_COMPARED // 2 else 2


class TextGuesses:
    """The sources of guesses of one text: `lookup`, `draft`, or both, in this order."""

    def __init__(
        self, lookup: PromptLookup | None, draft: DraftText | None, vocab_size: int
    ) -> None:
        self.lookup = lookup
        self.draft = draft
        self.vocab_size = vocab_size
        self.balance = Balance()
        self.counts = GuessCounts()
        self._seen = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read the new tokens of the text."""
        if self.lookup is not None:
            self.lookup.add(tokens[self._seen :])
        self._seen = len(tokens)

    @property
    def layers(self) -> Layers | None:
        """The states of the model that a draft head reads; None without a head."""
        draft = self.draft
        return draft.head_cache.head.reads if isinstance(draft, HeadText) else None

    def note(self, start: int, states: np.ndarray) -> None:
        """Take the states f32 [N, S] of tokens that the model has read, for a draft head."""
        if isinstance(self.draft, HeadText):
            self.draft.note(start, states)

    def close(self) -> None:
        """Release the resources of the draft."""
        if self.draft is not None:
            self.draft.release()


class Guess(NamedTuple):
    """Guessed next tokens, and the odds behind the guess."""

    tokens: Sequence[int]
    odds: Odds


class Candidate(NamedTuple):
    """A text that gets a token in the next step, and up to `most` guessed ones.

    `written` is its number of new tokens.
    """

    guesses: TextGuesses
    written: int
    most: int


class Guesser:
    """Guesses for the texts of a scheduler; `times` has its step times by rows with logits."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def guess(self, candidates: Sequence[Candidate], rows: int, room: int) -> list[Guess | None]:
        """Return the guess for each text, or None; together they have at most `room` tokens.

        The step has `rows` rows without guesses. Step times and odds determine the length of a
        guess; there is none if it does not pay, or if earlier guesses of the text cost too much.
        """
        found: list[Guess | None] = [None] * len(candidates)
        # Without a measured step there is nothing to weigh a guess against.
        if not candidates or self._times.estimate(rows) is None:
            return found
        with span("guess tokens"):
            wishes: dict[int, Wish] = {}
            for number, each in enumerate(candidates):
                length, match = self._length(each, rows, min(each.most, room))
                if not length:
                    continue
                rows, room = rows + length, room - length
                lookup, draft = each.guesses.lookup, each.guesses.draft
                if match is not None and lookup is not None:
                    found[number] = Guess(lookup.after(match, length), match.odds)
                elif draft is not None:
                    wishes[number] = Wish(draft, length)
            self._draft(candidates, wishes, found)
        return found

    def _length(self, each: Candidate, rows: int, most: int) -> tuple[int, Match | None]:
        """Return how many tokens to guess for a text, and the match to take them from, if looked
        up."""
        guesses = each.guesses
        if most < 1:
            return 0, None
        match = guesses.lookup.find() if guesses.lookup is not None else None
        allowed = guesses.balance.allows(each.written)
        if match is not None:
            length = 0
            if allowed:
                most_here = min(most, MOST_GUESSED)
                length = best_length(match.odds.each, most_here, rows, self._seconds(rows))
            if length:
                return length, match
            # Odds drift back while nothing is guessed; otherwise one bad stretch would end guessing
            # for good.
            match.odds.rest()
        draft = guesses.draft
        if draft is None or draft.room < 1:
            return 0, None
        times = draft.cache.times
        length = 0
        if allowed:
            seconds = self._seconds(rows, times.estimate(1) or 0.0)
            length = best_length(draft.odds.each, min(most, draft.room), rows, seconds)
        if not length:
            draft.odds.rest()
        return length, None

    def _seconds(self, rows: int, each: float = 0.0) -> Callable[[int], float]:
        def seconds(guessed: int) -> float:
            return (self._times.estimate(rows + guessed) or 1.0) + guessed * each

        return seconds

    def _draft(
        self,
        candidates: Sequence[Candidate],
        wishes: dict[int, Wish],
        found: list[Guess | None],
    ) -> None:
        """Let drafts guess, batching the texts of each draft."""
        while wishes:
            cache = next(iter(wishes.values())).text.cache
            numbers = [number for number, wish in wishes.items() if wish.text.cache is cache]
            own = [wishes.pop(number) for number in numbers]
            vocab_size = candidates[numbers[0]].guesses.vocab_size
            for number, wish, tokens in zip(numbers, own, drafted(own, vocab_size), strict=True):
                if tokens:
                    found[number] = Guess(tokens, wish.text.odds)

    def record(self, rows: int, seconds: float) -> None:
        """Record the time of a step of `rows` rows, all with logits."""
        self._times.record(rows, seconds)

    def record_guess(
        self, guesses: TextGuesses, guess: Guess, accepted: int, rows: tuple[int, int]
    ) -> None:
        """Record how many tokens of a guess were accepted.

        `rows` are the numbers of rows without and with all guesses.
        """
        proposed = len(guess.tokens)
        guess.odds.record_guess(proposed, accepted)
        guesses.counts += GuessCounts(proposed, accepted)
        plain, whole = (self._times.estimate(count) for count in rows)
        if plain is None or whole is None:
            return
        # Guesses of several texts made the step longer together; each pays for its tokens.
        share = proposed / (rows[1] - rows[0])
        spent = max(0.0, whole - plain) * share
        draft = guesses.draft
        if draft is not None and guess.odds is draft.odds:
            spent += proposed * (draft.cache.times.estimate(1) or 0.0)
        guesses.balance.record_guess(accepted, rows[0] * spent / plain)
