"""Generation about sources: a `TextCache` for encoder-decoder models."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.errors import CacheBudgetError
from gptrs.nn.decoder_cache import DecoderState
from gptrs.plugins.capabilities import Seq2SeqLM
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepTimes
from gptrs_runtime.generation.text_cache import Row
from gptrs_runtime.text_batches import one_batch


class SourceText(TextPages):
    """A text, its source, and once it has begun its lot and the row that it has there."""

    def __init__(self, source: Sequence[int], lot: Lot | None = None, row: int = 0) -> None:
        super().__init__((), [], [])
        self.source = tuple(source)
        self.lot = lot
        self.row = row


class Lot:
    """Texts that began together, with as many tokens, and grow in step."""

    def __init__(self, state: DecoderState) -> None:
        self.state = state
        self.texts: list[SourceText] = []

    def write(self, lm: Seq2SeqLM, rows: Sequence[tuple[SourceText, Sequence[int]]]) -> np.ndarray:
        """Append the tokens of each text; return the logits f32 [B, V] after the last."""
        given = [text for text, _ in rows]
        for text in self.texts:
            text.lost = text not in given
        self.texts = given
        try:
            self.state.keep([text.row for text in given])
            for row, text in enumerate(given):
                text.row = row
            logits = lm.write(np.array([tokens for _, tokens in rows], np.int64), self.state)
        except BaseException:
            for text in given:
                text.lost = True
            raise
        for text, tokens in rows:
            text.tokens += tokens
        return logits[:, -1]


class SourceCache:
    """Reads the sources of texts that begin together, and keeps what each lot needs.

    Texts are admitted until the first step; others wait until these have ended.
    """

    chunked = False
    short_context: int | None = None

    def __init__(self, lm: Seq2SeqLM, backend: Backend) -> None:
        self._lm = lm
        self._backend = backend
        self._lock = threading.RLock()
        self._begun: set[SourceText] = set()
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
    ) -> TextPages | None:
        """Return a text about `source`; None while others write."""
        return None if self._begun else SourceText(source)

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Append tokens to texts; return the logits f32 [B, V] after the last one of each."""
        given = [(row.text, row.tokens) for row in rows if isinstance(row.text, SourceText)]
        self._begin(given)
        found: dict[SourceText, np.ndarray] = {}
        for lot in dict.fromkeys(text.lot for text, _ in given):
            assert lot is not None
            own = [(text, tokens) for text, tokens in given if text.lot is lot]
            found.update(zip((text for text, _ in own), lot.write(self._lm, own), strict=True))
        return np.stack([found[text] for text, _ in given])

    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Nothing is guessed ahead."""

    def fork(self, text: TextPages) -> TextPages | None:
        """Return another text of the same lot with the same content."""
        assert isinstance(text, SourceText)
        copy = SourceText(text.source, text.lot, text.row)
        copy.tokens = list(text.tokens)
        self._begun.add(copy)
        return copy

    def rewind(self, text: TextPages, length: int) -> None:
        """CacheBudgetError: a text of a lot cannot go back alone, it begins anew."""
        raise CacheBudgetError("a text that is written in step with others cannot go back")

    def release(self, text: TextPages) -> None:
        """Let others begin once all that run have ended."""
        if isinstance(text, SourceText):
            self._begun.discard(text)

    def _begin(self, rows: Iterable[tuple[SourceText, Sequence[int]]]) -> None:
        """Read the sources of texts without a lot, those with as many tokens together."""
        lots: dict[int, list[SourceText]] = {}
        for text, tokens in rows:
            if text.lot is None:
                lots.setdefault(len(tokens), []).append(text)
        for texts in lots.values():
            sources = [text.source for text in texts]
            longest = self._lm.source_length
            batch = one_batch(sources, self._backend, longest)
            lot = Lot(self._lm.read_sources(batch.tokens, batch.mask))
            for row, number in enumerate(batch.rows):
                texts[number].lot, texts[number].row = lot, row
            self._begun.update(texts)
