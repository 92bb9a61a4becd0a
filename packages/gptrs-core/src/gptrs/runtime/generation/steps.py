"""The logits of several texts that grow together, token by token, from one cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.nn.kv_cache import KVCache
from gptrs.plugins.capabilities import CausalLM
from gptrs.runtime.generation.context import Context
from gptrs.runtime.generation.prompt_cache import PromptCache

_PADDING = 0
"""Any token will do at the left of shorter texts: nothing sees it."""


class Steps:
    """Runs a model on `contexts`, whose owners append the tokens that they choose.

    `begin` reads them as they are, `next` the token that was appended to each. Where the cache is
    full of padding, or a context moved, all are read anew. `size` is how many tokens a context may
    have; with `fixed` there is room for all of them at once.
    """

    def __init__(
        self,
        lm: CausalLM,
        contexts: Sequence[Context],
        *,
        size: int,
        chunk: int,
        fixed: bool = False,
        use_cache: bool = True,
    ) -> None:
        self._lm = lm
        self._contexts = list(contexts)
        self._size = size
        self._chunk = chunk
        self._fixed = fixed
        self._use_cache = use_cache
        self._cache: KVCache | None = None

    def begin(self, known: PromptCache | None = None) -> np.ndarray:
        """Logits [B, V] after the contexts; what `known` holds of a single one is not read."""
        longest = max(len(context.tokens) for context in self._contexts)
        padding = [longest - len(context.tokens) for context in self._contexts]
        rows = [
            [_PADDING] * count + context.tokens
            for count, context in zip(padding, self._contexts, strict=True)
        ]
        for context in self._contexts:
            context.moved = False
        tokens = np.array(rows, np.int64)
        left_padding = np.array(padding, np.int64) if any(padding) else None
        if not self._use_cache:
            return self._lm.forward(tokens, left_padding)[:, -1]
        return self._prefill(tokens, left_padding, known)

    def next(self) -> np.ndarray:
        """Logits [B, V] after one more token in each context."""
        cache = self._cache
        if cache is None or self.must_begin:
            return self.begin()
        tokens = [[context.tokens[-1]] for context in self._contexts]
        return self._lm.step(np.array(tokens, np.int64), cache)

    @property
    def must_begin(self) -> bool:
        """Whether `next` will read all contexts anew."""
        cache = self._cache
        full = cache is None or cache.length >= cache.limit
        return full or any(context.moved for context in self._contexts)

    def split(self, contexts: Sequence[Context]) -> None:
        """Go on with several continuations of the only context."""
        self._contexts = list(contexts)
        if self._cache is not None:
            self._cache = self._cache.repeated(len(contexts))

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._contexts = [self._contexts[row] for row in rows]
        if self._cache is not None and not self.must_begin:
            self._cache = self._cache.rows(rows)

    def prompt_cache(self) -> PromptCache | None:
        """The cache of a single context and the tokens in it, None where there is none."""
        if self._cache is None or self._cache.batch != 1 or self._contexts[0].moved:
            return None
        return PromptCache(tuple(self._contexts[0].tokens[: self._cache.length]), self._cache)

    def _prefill(
        self, tokens: np.ndarray, left_padding: np.ndarray | None, known: PromptCache | None
    ) -> np.ndarray:
        done = 0
        if known is not None and known.cache.length <= self._size:
            self._cache = cache = self._resized(known.cache)
            done = PromptCache(known.tokens, cache).reuse(self._contexts[0].tokens)
        else:
            self._cache = cache = self._new_cache(len(tokens), left_padding)
        logits = np.empty((0, 0), np.float32)
        for start in range(done, tokens.shape[1], self._chunk):
            logits = self._lm.step(tokens[:, start : start + self._chunk], cache)
        return logits

    def _new_cache(self, batch: int, left_padding: np.ndarray | None) -> KVCache:
        cache = self._lm.new_cache(batch, left_padding)
        cache.limit = min(cache.limit, self._size)
        if self._fixed:
            cache.reserve(self._size)
        return cache

    def _resized(self, known: KVCache) -> KVCache:
        """The cache that is known, with as much room as was asked for."""
        if known.limit == self._size and (known.capacity >= self._size or not self._fixed):
            return known
        cache = self._new_cache(1, None)
        cache.restore(known.length, known.state())
        return cache
