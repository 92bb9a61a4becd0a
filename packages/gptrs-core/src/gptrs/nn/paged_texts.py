"""Texts with pages of their own: a cache without a pool, for comparisons, tests and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.nn.cache_spec import CacheSpec, cache_groups
from gptrs.nn.page_buffers import PageBuffers
from gptrs.nn.ragged_step import RaggedStep, TextTokens, own_pages, ragged_step


class StepModel(Protocol):
    """The part of `CausalLM` that runs steps."""

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return what the cache of each block holds."""
        ...

    def new_buffers(self, pages: Sequence[int], dtype: DType = ...) -> PageBuffers:
        """Return empty pools."""
        ...

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append tokens; return the logits after the last of each text."""
        ...


class PagedTexts:
    """`batch` texts of up to `limit` positions; each owns its pages from the start.

    `lengths` has the positions of each. The pages are never shared or given back: generation has a
    pool for that.
    """

    def __init__(self, lm: StepModel, batch: int, limit: int, dtype: DType = dtypes.f32) -> None:
        self.lengths = [0] * batch
        self._lm = lm
        self._short = cast("int | None", getattr(lm, "short_context", None))
        self._read: list[list[int]] = [[] for _ in range(batch)]
        groups = cache_groups(lm.cache_specs())
        self._tables = [own_pages(batch, limit)] * len(groups)
        self.buffers = lm.new_buffers([self._tables[0].size] * len(groups), dtype)

    def append(self, tokens: TextTokens) -> np.ndarray:
        """Append one token or more to each text; return the logits f32 [B, V] after the last.

        IndexError beyond the limit, ContextLengthError beyond the context.
        """
        given = [[int(token) for token in new] for new in tokens]
        for text, new in enumerate(given):
            known = self._read[text]
            if self._short is not None and len(known) <= self._short < len(known) + len(new):
                given[text], self.lengths[text] = known + new, 0
            self._read[text] = known + new
        step = ragged_step(given, self.lengths, self._tables)
        logits = self._lm.step(step, self.buffers)
        self.lengths = step.lengths.tolist()
        return logits
