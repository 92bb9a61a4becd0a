"""Counts and times of the server, as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gptrs.runtime.serving.answers import AnswerStream, Piece
from gptrs.runtime.serving.engine import Engine
from gptrs_serve.answers import guesses_of
from gptrs_serve.text_calls import TextCalls

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


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
        self._new = Counter("gptrs_generated_tokens", "Tokens that were generated.", registry=made)
        self._guessed = Counter(
            "gptrs_guessed_tokens",
            "Tokens that were guessed ahead, and what became of them.",
            ["outcome"],
            registry=made,
        )
        self._first = Histogram(
            "gptrs_first_token_seconds", "From a request to its first token.", buckets=_SECONDS,
            registry=made,
        )  # fmt: skip
        self._gap = Histogram(
            "gptrs_token_gap_seconds",
            "Between tokens of an answer.",
            buckets=_SECONDS,
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

    async def measured(self, stream: AnswerStream) -> AsyncGenerator[Piece]:
        """Yield the pieces of a stream, and note when they come."""
        last: dict[int, float] = {}
        try:
            async for piece in stream:
                now = time.perf_counter()
                if not last:
                    self._first.observe(now - stream.submitted)
                if piece.index in last:
                    self._gap.observe(now - last[piece.index])
                last[piece.index] = now
                self._new.inc(len(piece.tokens))
                yield piece
        finally:
            stream.cancel()
            self._prompt.inc(stream.prompt_tokens)
            self._cached.inc(stream.cached_tokens)
            guesses = guesses_of([stream])
            if guesses is not None:
                self._guessed.labels("accepted").inc(guesses.accepted)
                self._guessed.labels("rejected").inc(guesses.proposed - guesses.accepted)

    def text(self) -> bytes:
        """Return all in the text form of Prometheus."""
        return generate_latest(self._registry)
