"""The model's side of generation: several contexts that are prefilled and decoded together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.nn.kv_cache import KVCache
from gptrs.plugins.capabilities import CausalLM
from gptrs.runtime.generation.context import Context
from gptrs.runtime.generation.prefill import prefill
from gptrs.runtime.generation.prompt_cache import PromptCache

_PADDING = 0
"""Any token serves as padding: no text sees it."""


class DecodeBatch:
    """Runs a model on `contexts`, whose owners append the tokens that they choose.

    `prefill` reads them whole, `decode` the token that was appended to each. Where the cache is
    full of padding, or a context moved, `decode` prefills again. `size` is how many tokens a
    context may have; with `fixed` there is room for all of them at once.
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

    def prefill(self, known: PromptCache | None = None) -> np.ndarray:
        """Return the logits f32 [B, V] after the contexts; `known` is of a single one."""
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
        cache, done = self._cache_for(left_padding, known)
        return prefill(self._lm, tokens[:, done:], cache, self._chunk)

    def decode(self) -> np.ndarray:
        """Return the logits f32 [B, V] after one more token in each context."""
        cache = self._cache
        if cache is None or self.must_prefill:
            return self.prefill()
        tokens = [[context.tokens[-1]] for context in self._contexts]
        return self._lm.step(np.array(tokens, np.int64), cache)

    @property
    def must_prefill(self) -> bool:
        """Whether `decode` will prefill all contexts again."""
        cache = self._cache
        full = cache is None or cache.length >= cache.limit
        return full or any(context.moved for context in self._contexts)

    def split(self, contexts: Sequence[Context]) -> None:
        """Continue with several copies of the only context."""
        self._contexts = list(contexts)
        if self._cache is not None:
            self._cache = self._cache.repeated(len(contexts))

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with these rows only."""
        self._contexts = [self._contexts[row] for row in rows]
        if self._cache is not None and not self.must_prefill:
            self._cache = self._cache.rows(rows)

    def prompt_cache(self) -> PromptCache | None:
        """Return the cache of a single context and its tokens, None where there is none."""
        if self._cache is None or self._cache.batch != 1 or self._contexts[0].moved:
            return None
        return PromptCache(tuple(self._contexts[0].tokens[: self._cache.length]), self._cache)

    def _cache_for(
        self, left_padding: np.ndarray | None, known: PromptCache | None
    ) -> tuple[KVCache, int]:
        """Set the cache to prefill, and return it with the number of tokens that it has already."""
        if known is None or known.cache.length > self._size:
            self._cache = self._new_cache(len(self._contexts), left_padding)
            return self._cache, 0
        self._cache = self._resized(known.cache)
        reused = PromptCache(known.tokens, self._cache).reuse(self._contexts[0].tokens)
        return self._cache, reused

    def _new_cache(self, batch: int, left_padding: np.ndarray | None) -> KVCache:
        cache = self._lm.new_cache(batch, left_padding)
        cache.limit = min(cache.limit, self._size)
        if self._fixed:
            cache.reserve(self._size)
        return cache

    def _resized(self, known: KVCache) -> KVCache:
        """Return the known cache with the room that the options ask for."""
        if known.limit == self._size and (known.capacity >= self._size or not self._fixed):
            return known
        cache = self._new_cache(1, None)
        cache.restore(known.length, known.state())
        return cache
