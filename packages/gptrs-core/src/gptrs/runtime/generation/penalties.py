"""Logits changed by what was said before, in the order in which transformers does it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gptrs.runtime.generation.restrictions import Restrictions
from gptrs.runtime.generation.sampling import Sampling


class TokenCounts:
    """How often tokens occur, as arrays that serve as indices; adding one takes constant time."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._place: dict[int, int] = {}
        self._tokens = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more `token`."""
        place = self._place.setdefault(token, len(self._place))
        if place == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        self._counts[place] += 1

    @property
    def tokens(self) -> np.ndarray:
        """Each token that occurs, once, si64."""
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `tokens` occurs, f32."""
        return self._counts[: len(self._place)]


class SeenNgrams:
    """Which tokens would repeat `size` tokens in a row."""

    def __init__(self, size: int, tokens: Iterable[int]) -> None:
        self._size = size
        self._last: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], list[int]] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Take note of the next token."""
        if len(self._last) == self._size - 1:
            self._followers.setdefault(self._last, []).append(token)
        self._last = (*self._last, token)[-(self._size - 1) :] if self._size > 1 else ()

    @property
    def repeating(self) -> list[int]:
        """The tokens that followed what came last."""
        return self._followers.get(self._last, [])


class Penalties:
    """The logits of one text, changed by its tokens so far.

    The order is that of transformers: the penalties of a `Sampling`, then repeated rows of tokens,
    ends that come too early, and suppressed tokens.
    """

    def __init__(
        self,
        sampling: Sampling,
        restrictions: Restrictions,
        ends: frozenset[int],
        prompt: Sequence[int],
    ) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._restrictions = restrictions
        self._ends = list(ends)
        self._seen = TokenCounts(prompt) if sampling.repetition_penalty != 1 else None
        counted = sampling.presence_penalty or sampling.frequency_penalty
        self._generated = TokenCounts() if counted else None
        size = restrictions.no_repeat_ngram_size
        self._ngrams = SeenNgrams(size, prompt) if size else None
        self._suppressed = list(restrictions.suppress)
        self._length = 0

    @property
    def is_empty(self) -> bool:
        """Whether logits would always stay as they are."""
        kept = (self._seen, self._generated, self._ngrams)
        return all(part is None for part in kept) and self._restrictions == Restrictions()

    def add(self, token: int) -> None:
        """Take note of a token that was generated."""
        self._length += 1
        for part in (self._seen, self._generated, self._ngrams):
            if part is not None:
                part.add(token)

    def applied(self, logits: np.ndarray) -> np.ndarray:
        """New logits f32 [V] for the next token; ids beyond the vocabulary have none."""
        changed = logits.copy()
        if self._seen is not None:
            tokens = self._seen.tokens
            seen = changed[tokens]
            changed[tokens] = np.where(seen < 0, seen * self._repetition, seen / self._repetition)
        if self._generated is not None:
            lost = self._generated.counts * self._frequency + self._presence
            changed[self._generated.tokens] -= lost
        changed[self._forbidden(logits.size)] = -np.inf
        return changed

    def _forbidden(self, size: int) -> list[int]:
        tokens = [] if self._ngrams is None else list(self._ngrams.repeating)
        if self._length < self._restrictions.min_new_tokens:
            tokens += self._ends
        tokens += self._suppressed
        if self._length == 0:
            tokens += self._restrictions.begin_suppress
        return [token for token in tokens if token < size]
