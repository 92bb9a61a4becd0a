"""Generation without a key/value cache: each step reads every text anew."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from gptrs.plugins.capabilities import CausalLM
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepTimes
from gptrs_runtime.generation.text_cache import Row


class NoCache:
    """A `TextCache` that keeps nothing: all tokens of a text are new in each step."""

    chunked = False
    short_context: int | None = None

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm
        self._lock = threading.RLock()
        self.times = StepTimes()

    def exclusive(self) -> AbstractContextManager[object]:
        """Scope in which no other thread runs the texts of a scheduler."""
        return self._lock

    def require(self, positions: int, step: int) -> None:
        """Any text has room."""

    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages:
        """Return a text without pages."""
        return TextPages((), [], [])

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Run the model on each text by itself."""
        return np.concatenate([self._logits(row) for row in rows])

    def _logits(self, row: Row) -> np.ndarray:
        tokens = np.array([[*row.tokens, *row.guess]], np.int64)
        return self._lm.forward(tokens)[0, -1 - len(row.guess) :]

    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Nothing is kept: the next step reads them anew."""

    def fork(self, text: TextPages) -> TextPages:
        """Return a text without pages."""
        return TextPages((), [], [])

    def rewind(self, text: TextPages, length: int) -> None:
        """Nothing is there to forget."""

    def release(self, text: TextPages) -> None:
        """Nothing is there to give back."""
