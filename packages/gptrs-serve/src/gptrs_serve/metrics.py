"""Counts and times of the server, as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gptrs_runtime.serving.answers import AnswerStream, Piece, TakeNow
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.answers import guesses_of
from gptrs_serve.text_calls import TextCalls
from gptrs_serve.token_counts import TokenCounts


class Metrics:
    """Counters of requests and tokens, times of first tokens and gaps, and what the engine does."""

    def __init__(self, engine: Engine | None, calls: TextCalls) -> None:
        self._registry = CollectorRegistry()
        made = self._registry
        self._requests = Counter(
            "gptrs_requests", "Requests that were answered.", ["path", "status"], registry=made
        )
        self._prompt = Counter("gptrs_prompt_tokens", "Tokens of prompts.", registry=made)
        self._cached = Counter(
            "gptrs_cached_tokens", "Tokens of prompts that the cache had already.", registry=made
        )
        self._new = TokenCounts()
        made.register(self._new)
        self._guessed = Counter(
            "gptrs_guessed_tokens",
            "Tokens that were guessed ahead, and what became of them.",
            ["outcome"],
            registry=made,
        )
        self._gauge(
            "reading_requests", "Embeddings, rankings and classes that have not ended.",
            lambda: calls.requests,
        )  # fmt: skip
        if engine is not None:
            self._add_gauges(engine)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"gptrs_{name}", text, registry=self._registry).set_function(value)

    def _add_gauges(self, engine: Engine) -> None:
        gauge = self._gauge
        gauge("texts_running", "Answers that are written now.", lambda: engine.state().running)
        gauge("texts_waiting", "Answers that wait for room.", lambda: engine.state().waiting)
        gauge("requests_open", "Requests that have not ended.", lambda: engine.state().requests)
        gauge("cache_pages_held", "Pages that texts hold.", lambda: engine.state().pages_held)
        gauge("cache_pages_most", "Pages that there may be.", lambda: engine.state().pages_most)
        gauge("steps", "Steps since the start.", lambda: engine.state().steps)

    def answered(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    async def measured(
        self, stream: AnswerStream, take: TakeNow | None = None
    ) -> AsyncGenerator[list[Piece]]:
        """Yield the pieces of a stream that have come, and note when they come.

        Those that `take` takes are noted, too, as `AnswerStream.grown` has it.
        """
        last: dict[int, float] = {}

        def noted(pieces: Sequence[Piece]) -> bool:
            taken = take is not None and take(pieces)
            if taken:
                self._note(pieces, last, stream)
            return taken

        try:
            while pieces := await stream.grown(take and noted):
                self._note(pieces, last, stream)
                yield pieces
        finally:
            stream.cancel()
            self._prompt.inc(stream.prompt_tokens)
            self._cached.inc(stream.cached_tokens)
            guesses = guesses_of([stream])
            if guesses is not None:
                self._guessed.labels("accepted").inc(guesses.accepted)
                self._guessed.labels("rejected").inc(guesses.proposed - guesses.accepted)

    def _note(self, pieces: Sequence[Piece], last: dict[int, float], stream: AnswerStream) -> None:
        """Note that pieces came now; `last` is when those before came, by answer."""
        now, new = time.perf_counter(), self._new
        if not last:
            new.first.add(now - stream.submitted)
        for piece in pieces:
            if piece.index in last:
                new.gap.add(now - last[piece.index])
            last[piece.index] = now
            new.tokens += len(piece.tokens)

    def text(self) -> bytes:
        """Return all in the text form of Prometheus."""
        return generate_latest(self._registry)
