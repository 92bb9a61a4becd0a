"""One model of an engine: its scheduler, and whose texts they are."""

from __future__ import annotations

import logging

from gptrs.errors import CacheBudgetError, GptrsError
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.serving.answers import AnswerStream
from gptrs_runtime.serving.families import Family

_logger = logging.getLogger("gptrs")

_ATTEMPTS = 2
"""How often a step is tried before its texts are given up."""


class Lane:
    """The texts of a model or of a family; all but `check` happens in the thread of the engine."""

    def __init__(self, family: Family, options: GenerationOptions, most_texts: int) -> None:
        self.family = family
        self.options = options
        setup = GenerationSetup(family.models[0], options)
        self._cache = family.new_cache(options) or setup.cache
        self._scheduler = setup.new_scheduler(most_texts, self._failed, self._cache)
        self._streams: dict[GeneratedText, AnswerStream] = {}
        self._failures = 0
        self._changed: set[AnswerStream] = set()

    @property
    def busy(self) -> bool:
        """Whether there are texts that have not ended."""
        return self._scheduler.busy

    @property
    def running(self) -> int:
        """How many texts have begun and not ended."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """How many texts have not begun."""
        return self._scheduler.waiting

    @property
    def streams(self) -> set[AnswerStream]:
        """The requests that have not ended."""
        return set(self._streams.values())

    def check(self, text: GeneratedText) -> None:
        """CacheBudgetError if the cache would not even hold the text alone."""
        if self._cache is not None:
            self._cache.require(text.most_positions, self.options.prefill_chunk)

    def cache_pages(self) -> tuple[int, int]:
        """Return how many pages of the cache texts hold, and the most that there may be."""
        groups = self._cache.pool.groups if self._cache is not None else ()
        return sum(group.held for group in groups), sum(g.layout.most_pages for g in groups)

    def add(self, stream: AnswerStream, priority: int) -> None:
        """Add the answers of a request, which read its prompt once."""
        for text in stream.texts:
            self._streams[text] = stream
        self._scheduler.add(stream.texts[0], stream.texts[1:], priority=priority)

    def end(self, stream: AnswerStream, error: Exception | None = None) -> None:
        """Take a request out, wherever it is, and tell it why."""
        for text in stream.texts:
            if self._streams.pop(text, None) is not None:
                self._scheduler.cancel(text)
        stream.end(error)
        self._changed.add(stream)

    def step(self) -> bool:
        """Run the model once; return whether it did.

        Texts of other schedulers may leave no room at the moment: the step is to be tried again. So
        is one that failed, and then those that run are given up.
        """
        try:
            grown = self._scheduler.step()
        except CacheBudgetError:
            return False
        except Exception as error:
            self._failures += 1
            if self._failures >= _ATTEMPTS:
                self._give_up(error)
            return True
        self._failures = 0
        for text, piece in grown:
            self._grow(text, piece)
        return True

    def changed(self) -> set[AnswerStream]:
        """Return the requests that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _grow(self, text: GeneratedText, piece: str) -> None:
        stream = self._streams.get(text)
        if stream is not None:
            stream.grow(text, piece)
            self._changed.add(stream)
            if text.ended:
                del self._streams[text]

    def _failed(self, text: GeneratedText, error: Exception) -> None:
        stream = self._streams.get(text)
        if stream is not None:
            self.end(stream, error)

    def _give_up(self, error: Exception) -> None:
        """End the texts that run: one of them may be why steps fail. Those that wait go on."""
        if not isinstance(error, GptrsError):
            _logger.error("a step of `%s` failed", self.family.models[0].name, exc_info=error)
        self._failures = 0
        running = {self._streams[t] for t in self._scheduler.running if t in self._streams}
        for stream in running:
            self.end(stream, error)
