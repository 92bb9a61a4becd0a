"""Guesses of a draft model: a smaller model with the same tokenizer that reads along."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.generation.context import Context
from gptrs_runtime.generation.paged_cache import PagedCache, paged_cache
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.text_cache import Row
from gptrs_runtime.loaded_model import LoadedModel

# How often guesses of one text are accepted, and the time they saved or cost.


_MEMORY: Final = 0.8
"""Decay of a guess's weight with each later guess of its kind."""
_RECOVERY: Final = 0.03
"""How far odds return to their initial value with each unguessed token."""
_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Candidate lengths of guesses."""
_ALLOWANCE: Final = 1.0
"""The loss allowed by guessing, in steps of one token: a constant, and a share per generated
token:"""
_SHARE: Final = 0.01
_MOST_WON: Final = 4.0
"""Cap on the saved steps, see `Balance`."""


class Odds:
    """The probability that a guessed token is right given that all before it are: `hits` of
    `tries`.

    Recent guesses count more. `hits` and `tries` start at the initial values.
    """

    def __init__(self, hits: float, tries: float) -> None:
        self._first = hits, tries
        self._hits, self._tries = hits, tries

    @property
    def each(self) -> float:
        """The probability."""
        return self._hits / self._tries

    def record_guess(self, proposed: int, accepted: int) -> None:
        """Record a guess whose first `accepted` of `proposed` tokens were right."""
        self._hits = self._hits * _MEMORY + accepted
        # A guess is tested up to its first wrong token; those after it were never tried.
        self._tries = self._tries * _MEMORY + accepted + (accepted < proposed)

    def rest(self) -> None:
        """Record a token generated without a guess where a guess was possible."""
        hits, tries = self._first
        self._hits += (hits - self._hits) * _RECOVERY
        self._tries += (tries - self._tries) * _RECOVERY


class Balance:
    """Steps saved by guesses of a text minus their cost, with a limit on the loss."""

    def __init__(self) -> None:
        self._won = 0.0

    def allows(self, tokens: int) -> bool:
        """Return whether a text with `tokens` new tokens may continue guessing."""
        return self._won > -(_ALLOWANCE + _SHARE * tokens)

    def record_guess(self, saved: float, cost: float) -> None:
        """Record what a guess saved and cost, in steps of one token."""
        # Bounded, so that a lucky stretch cannot pay for an arbitrarily long unlucky one.
        self._won = min(_MOST_WON, self._won + saved - cost)


def best_length(odds: float, most: int, texts: int, seconds: Callable[[int], float]) -> int:
    """Return the guess length that maximizes tokens per second of a step; 0 for no guess.

    `texts` get one token each in any case; `seconds` gives the time of the step plus making the
    guess, by number of guessed tokens.
    """
    best, rate = 0, texts / seconds(0)
    for length in _lengths(most):
        # A guessed token counts only if all before it are right: the expected number of accepted
        # tokens is odds + odds^2 + .. + odds^length.
        expected = texts + odds * (1 - odds**length) / (1 - odds) if odds < 1 else texts + length
        if expected / seconds(length) > rate:
            best, rate = length, expected / seconds(length)
    return best


def _lengths(most: int) -> Sequence[int]:
    return [*(size for size in _SIZES if size < most), *([most] if most else [])]


MOST_GUESSED = 16
"""The longest guess of a draft, since each token takes a step of the draft."""


class DraftText:
    """One text in the draft model, and the acceptance odds of its guesses.

    `chunk` limits the tokens that the draft reads per step, `most_positions` the length of the
    text.
    """

    def __init__(
        self, cache: PagedCache, context: Context, sampler: Sampler, most_positions: int, chunk: int
    ) -> None:
        self.cache = cache
        self.odds = Odds(2, 2.5)
        self.context = context
        self.sampler = sampler
        self.most_positions = min(most_positions, cache.context_length)
        self.chunk = chunk
        self.pages: TextPages | None = None
        self.guess: list[int] = []
        """Tokens after those in `pages` that the draft has read, except the last one."""
        self._shifts = context.shifts

    @property
    def room(self) -> int:
        """Return how many tokens the draft may guess."""
        return min(MOST_GUESSED, self.most_positions - len(self.context.tokens))

    def unread(self) -> list[int] | None:
        """Return the tokens that the draft must read before it can guess; None without room in its
        cache.
        """
        tokens = self.context.tokens
        if self.pages is not None and (self.pages.lost or self._shifts != self.context.shifts):
            self.release()
        if self.pages is None:
            self._shifts = self.context.shifts
            self.pages = self.cache.admit(tokens, self.most_positions, self.chunk)
            if self.pages is None:
                return None
        right = self._right(tokens[self.pages.length :])
        self.cache.keep(self.pages, self.guess[:right])
        self.guess = []
        return tokens[self.pages.length :]

    def _right(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of the last guess were read and accepted; one is left to read."""
        read = self.guess[:-1]
        most = min(len(read), len(tokens) - 1)
        return next((n for n in range(most) if read[n] != tokens[n]), max(0, most))

    def release(self) -> None:
        """Release the pages in the draft's cache."""
        if self.pages is not None:
            self.cache.release(self.pages)
        self.pages, self.guess = None, []


class Wish(Struct, frozen=True):
    """A text and the number of tokens to guess for it."""

    text: DraftText
    count: int


def drafted(wishes: Sequence[Wish], vocab_size: int) -> list[list[int]]:
    """Return a guess for each text of one draft, batching the draft's steps.

    For a text that the draft has not fully read, a chunk is read instead of guessing. The draft
    uses the random numbers that the text itself will use, so that similar distributions give the
    same tokens.
    """
    guesses: list[list[int]] = [[] for _ in wishes]
    samplers: dict[int, Sampler] = {}
    rows: list[tuple[int, Row]] = []
    for number, wish in enumerate(wishes):
        unread = wish.text.unread()
        if unread is not None and wish.text.pages is not None:
            rows.append((number, Row(wish.text.pages, unread[: wish.text.chunk])))
            if len(unread) <= wish.text.chunk:
                # A copy: the text itself must still draw the same random numbers.
                samplers[number] = wish.text.sampler.ahead()
    while rows:
        cache = wishes[rows[0][0]].text.cache
        started = time.perf_counter()
        logits = cache.run([row for _, row in rows])
        if all(len(row.tokens) + len(row.guess) == 1 for _, row in rows):
            cache.times.record(len(rows), time.perf_counter() - started)
        numbers = [number for number, _ in rows]
        rows = []
        for number, scores in zip(numbers, logits, strict=True):
            if number in samplers:
                guess, wish = guesses[number], wishes[number]
                guess.append(_chosen(samplers[number], scores, vocab_size))
                wish.text.guess = guess
                if len(guess) < wish.count and wish.text.pages is not None:
                    row = Row(wish.text.pages, (), guess[-1:], len(guess) - 1)
                    rows.append((number, row))
    return guesses


def _chosen(sampler: Sampler, logits: np.ndarray, vocab_size: int) -> int:
    return sampler.choose(logits[:vocab_size])


_suiting: WeakKeyDictionary[LoadedModel, WeakKeyDictionary[LoadedModel, bool]] = WeakKeyDictionary()


def draft_cache(model: LoadedModel, draft: LoadedModel, dtype: DType) -> PagedCache:
    """Return the cache of a draft of `model`; UsageError if they do not have the same tokens."""
    require_same_tokens(model, draft)
    if any(spec.per_page for spec in draft.causal_lm().cache_specs()):
        raise UsageError(
            f"{quoted(draft.name)} cannot be a draft: it keeps a state of each text, which cannot"
            " take back tokens",
            hint="take a draft with attention in all layers",
        )
    return paged_cache(draft, dtype, None)


def require_same_tokens(model: LoadedModel, draft: LoadedModel) -> None:
    """UsageError unless the tokens of a model and its draft are the same."""
    known = _suiting.setdefault(draft, WeakKeyDictionary())
    if model not in known:
        _compare_tokens(model, draft)
        known[model] = True


def _compare_tokens(model: LoadedModel, draft: LoadedModel) -> None:
    names = f"the draft {quoted(draft.name)} and {quoted(model.name)}"
    hint = "take a draft of the same family of models, with the same tokenizer"
    if model.has_tokenizer != draft.has_tokenizer:
        without = draft if model.has_tokenizer else model
        raise UsageError(
            f"{names} must have the same tokenizer: {quoted(without.name)} has none", hint=hint
        )
    if not model.has_tokenizer:
        sizes = draft.causal_lm().vocab_size, model.causal_lm().vocab_size
        if sizes[0] != sizes[1]:
            raise UsageError(f"{names} have {sizes[0]} and {sizes[1]} tokens", hint=hint)
        return
    # Whole vocabularies: equal sizes with other tokens would give guesses that are never right, at
    # full cost.
    own, other = draft.tokenizer.vocabulary(), model.tokenizer.vocabulary()
    if own != other:
        token = min((pair[0] for pair in own.items() ^ other.items()), key=_shortest)
        raise UsageError(
            f"{names} have different tokenizers, of {len(own)} and {len(other)} tokens:"
            f" {shown_value(token)} is {_number(own, token)} and {_number(other, token)}",
            hint=hint,
        )


def _number(vocabulary: dict[str, int], token: str) -> str:
    number = vocabulary.get(token)
    return "no token" if number is None else f"token {number}"


def _shortest(token: str) -> tuple[int, str]:
    return len(token), token
