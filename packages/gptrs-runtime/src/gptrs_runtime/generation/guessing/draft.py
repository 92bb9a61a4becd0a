"""Guesses of a draft model: a smaller model with the same tokenizer that reads along."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.generation.context import Context
from gptrs_runtime.generation.paged_cache import (
    STATES,
    HeadCache,
    PagedCache,
    head_cache,
    paged_cache,
)
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.text_cache import Row
from gptrs_runtime.loaded_model import HEAD, LoadedModel

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
        room = self.most_positions - len(self.context.tokens)
        return min(MOST_GUESSED, self.cache.most_guessed, room)

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

    def first_row(self) -> tuple[Row, bool] | None:
        """Return what the draft reads next, and whether it then guesses; see `unread`."""
        unread = self.unread()
        if unread is None or self.pages is None:
            return None
        return Row(self.pages, unread[: self.chunk]), len(unread) <= self.chunk

    def next_row(self, guess: list[int], guide: np.ndarray | None) -> Row | None:
        """Return the row that reads the last token of a guess; None once its pages are lost."""
        self.guess = guess
        if self.pages is None:
            return None
        return Row(self.pages, (), guess[-1:], len(guess) - 1, _as_rows(guide))


def _as_rows(guide: np.ndarray | None) -> np.ndarray | None:
    return None if guide is None else guide[None]


_MOST_UNREAD: Final = 2048
"""Most states f32 [S] kept for a draft head, and most tokens of a prompt that it reads: a head
guesses nearly as well from the last part, and states take far more memory than tokens."""


class HeadText(DraftText):
    """One text in a draft head, which reads each token with the state of the model before it.

    Its sequence starts after token `_base` of the text. `head_cache.head.reads` are the states
    that it needs; `note` takes them.
    """

    def __init__(
        self, cache: HeadCache, context: Context, sampler: Sampler, most_positions: int, chunk: int
    ) -> None:
        super().__init__(cache, context, sampler, most_positions, chunk)
        self.head_cache = cache
        self._states: list[np.ndarray] = []
        """The states of the tokens from `_first` on, before `_end`, that may still be needed."""
        self._first = self._end = 0
        self._base = 0

    def note(self, start: int, states: np.ndarray) -> None:
        """Take the states f32 [N, S] of the tokens from position `start` on."""
        if not self._first <= start <= self._end:
            self._first, self._states = start, []
        elif start < self._end:
            self._states = [self._between(self._first, start)]
        self._states.append(states.copy())  # the buffer belongs to the backend
        self._end = start + len(states)
        read = 0 if self.pages is None else self._base + self.pages.length
        needed = max(read, self._end - _MOST_UNREAD)
        while self._first + len(self._states[0]) <= needed:
            self._first += len(self._states.pop(0))
            if not self._states:
                break

    def _between(self, start: int, end: int) -> np.ndarray:
        """Return the states f32 [N, S] of the tokens from `start` on, before `end`."""
        return np.concatenate(self._states)[start - self._first : end - self._first]

    @override
    def unread(self) -> list[int] | None:
        tokens = self.context.tokens
        if self._end != len(tokens) - 1:
            return None  # the model has read these tokens in a step without states
        if self.pages is not None and not self._continues():
            self.release()
        if self.pages is None:
            self.pages = self._admitted(0) or self._admitted(self._first)
            if self.pages is None:
                return None
        # Keys and values of guesses are not kept: they had the head's own guides.
        return tokens[self._base + 1 + self.pages.length :]

    def _continues(self) -> bool:
        """Return whether the head has read the start of this text and misses no state."""
        pages, tokens = self.pages, self.context.tokens
        if pages is None or pages.lost or self._base + pages.length < self._first:
            return False
        first = self._base + 1
        return list(pages.tokens) == tokens[first : first + pages.length]

    def _admitted(self, base: int) -> TextPages | None:
        """Return pages of the text after token `base`; None without room, or without the states of
        what must be read."""
        tokens = self.context.tokens
        # Keys and values depend on the tokens before. A collision would only spoil guesses.
        family = zlib.crc32(np.array(tokens[: base + 1], np.int64).tobytes()) & _FAMILIES
        room = self.most_positions - base
        pages = self.cache.admit(tokens[base + 1 :], room, self.chunk, family=family)
        if pages is not None and base + pages.length < self._first:
            self.cache.release(pages)
            return None
        self._base = base
        return pages

    @override
    def first_row(self) -> tuple[Row, bool] | None:
        found = super().first_row()
        if found is None:
            return None
        row, guesses = found
        start = self._base + row.text.length
        states = self._between(start, start + len(row.tokens))
        return row._replace(guides=self.head_cache.head.guides(states)), guesses


_FAMILIES: Final = (1 << 31) - 1


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
        found = wish.text.first_row()
        if found is not None:
            rows.append((number, found[0]))
            if found[1]:
                # A copy: the text itself must still draw the same random numbers.
                samplers[number] = wish.text.sampler.ahead()
    while rows:
        cache = wishes[rows[0][0]].text.cache
        started = time.perf_counter()
        logits, guides = _run([row for _, row in rows], cache)
        if all(len(row.tokens) + len(row.guess) == 1 for _, row in rows):
            cache.times.record(len(rows), time.perf_counter() - started)
        numbers = [number for number, _ in rows]
        rows = []
        for number, scores, guide in zip(numbers, logits, guides, strict=True):
            if number in samplers:
                guess, wish = guesses[number], wishes[number]
                guess.append(_chosen(samplers[number], scores, vocab_size))
                row = wish.text.next_row(guess, guide)
                if len(guess) < wish.count and row is not None:
                    rows.append((number, row))
    return guesses


def _run(rows: Sequence[Row], cache: PagedCache) -> tuple[np.ndarray, Sequence[np.ndarray | None]]:
    """Return the logits after rows, and the guides for what follows if a draft head has them."""
    if isinstance(cache, HeadCache):
        logits, guides = cache.run_guided(rows)
        return logits, list(guides)
    return cache.run(rows), [None] * len(rows)


def _chosen(sampler: Sampler, logits: np.ndarray, vocab_size: int) -> int:
    return sampler.choose(logits[:vocab_size])


_suiting: WeakKeyDictionary[LoadedModel, WeakKeyDictionary[LoadedModel, bool]] = WeakKeyDictionary()


def own_head_cache(model: LoadedModel, dtype: DType) -> HeadCache:
    """Return the cache of the head of `model` for further tokens; UsageError if it has none."""
    head = model.draft_head()
    if head is None:
        raise UsageError(
            f"{quoted(model.name)} has no head for multi-token prediction",
            hint="leave out --mtp; --prompt-lookup or --draft guess for any model",
        )
    return head_cache(model, head, dtype)


def draft_cache(model: LoadedModel, draft: LoadedModel, dtype: DType) -> PagedCache:
    """Return the cache of a draft of `model`; UsageError if they do not have the same tokens."""
    if HEAD in draft.capabilities:
        return head_cache(draft, draft.head_for(model), dtype)
    require_same_tokens(model, draft)
    return paged_cache(draft, dtype, None, STATES)


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
