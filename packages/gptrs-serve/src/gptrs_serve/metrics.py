"""Counts and times of the server in Prometheus' format, also under the names of vLLM.

Counting must be cheap, as each token is counted: plain numbers by model, read by the registry.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from gptrs_runtime.generation.guessing.guesser import GuessCounts
from gptrs_runtime.serving.answers import AnswerStream, Piece, TakeNow
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.accounts import Ledger
from gptrs_serve.request_log import note_facts

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LENGTHS: Final = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class _Histogram:
    """A histogram with the upper bounds `edges`."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._total += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative buckets, as the registry wants them, and the sum."""
        found: list[tuple[str, float]] = []
        total = 0
        for edge, count in zip((*self._edges, inf), self._counts, strict=True):
            total += count
            found.append(("+Inf" if edge == inf else str(float(edge)), total))
        return found, self._total


class ModelCounts:
    """Counts of the tokens and answers of one model."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = self.accepted = self.rejected = 0
        self.ends = Counts[str]()
        """Answers by finish reason."""
        self.first = _Histogram(_SECONDS)
        self.gap = _Histogram(_SECONDS)
        self.queue = _Histogram(_SECONDS)
        self.whole = _Histogram(_SECONDS)
        self.prompt_lengths = _Histogram(_LENGTHS)
        self.generated_lengths = _Histogram(_LENGTHS)


_COUNTERS: Final[tuple[tuple[tuple[str, ...], str, Callable[[ModelCounts], int]], ...]] = (
    (("gptrs_prompt_tokens", "vllm:prompt_tokens"), "Tokens of prompts.", lambda of: of.prompt),
    (("gptrs_cached_tokens", "vllm:prefix_cache_hits"),
     "Tokens of prompts that were cached.", lambda of: of.cached),
    (("vllm:prefix_cache_queries",), "Tokens of prompts that were sought.", lambda of: of.prompt),
    (("gptrs_generated_tokens", "vllm:generation_tokens"),
     "Tokens that were generated.", lambda of: of.generated),
)  # fmt: skip
_HISTOGRAMS: Final[tuple[tuple[tuple[str, ...], str, Callable[[ModelCounts], _Histogram]], ...]] = (
    (("gptrs_first_token_seconds", "vllm:time_to_first_token_seconds"),
     "From a request to its first token.", lambda of: of.first),
    (("gptrs_token_gap_seconds", "vllm:inter_token_latency_seconds",
      "vllm:time_per_output_token_seconds"),
     "Between tokens of an answer.", lambda of: of.gap),
    (("gptrs_queue_seconds", "vllm:request_queue_time_seconds"),
     "From a request to the step that began it.", lambda of: of.queue),
    (("gptrs_request_seconds", "vllm:e2e_request_latency_seconds"),
     "From a request to the end of its answers.", lambda of: of.whole),
    (("gptrs_request_prompt_tokens", "vllm:request_prompt_tokens"),
     "Tokens of a prompt.", lambda of: of.prompt_lengths),
    (("gptrs_request_generated_tokens", "vllm:request_generation_tokens"),
     "Tokens of an answer.", lambda of: of.generated_lengths),
)  # fmt: skip


class ModelMetrics(Collector):
    """The counts of each model; used by a single thread."""

    def __init__(self) -> None:
        self._models: dict[str, ModelCounts] = {}

    def of(self, model: str) -> ModelCounts:
        """Return the counts of a model, created on first use."""
        return self._models.setdefault(model, ModelCounts())

    @override
    def collect(self) -> Iterator[Metric]:
        for names, text, value in _COUNTERS:
            for name, label in _labelled(names):
                counter = CounterMetricFamily(name, text, labels=[label])
                for model, counts in self._models.items():
                    counter.add_metric([model], value(counts))
                yield counter
        for names, text, found in _HISTOGRAMS:
            for name, label in _labelled(names):
                histogram = HistogramMetricFamily(name, text, labels=[label])
                for model, counts in self._models.items():
                    histogram.add_metric([model], *found(counts).buckets())
                yield histogram
        yield from self._ends()

    def _ends(self) -> Iterator[Metric]:
        guessed = CounterMetricFamily(
            "gptrs_guessed_tokens",
            "Tokens that were guessed ahead, and what became of them.",
            labels=["model", "outcome"],
        )
        names = (("gptrs_answers", "reason"), ("vllm:request_success", "finished_reason"))
        families = [
            CounterMetricFamily(
                name, "Answers by why they ended.", labels=[_labelled([name])[0][1], reason]
            )
            for name, reason in names
        ]
        for model, counts in self._models.items():
            guessed.add_metric([model, "accepted"], counts.accepted)
            guessed.add_metric([model, "rejected"], counts.rejected)
            for reason, number in counts.ends.items():
                for family in families:
                    family.add_metric([model, reason], number)
        yield guessed
        yield from families


def _labelled(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return names, each with its name for the model label."""
    return [(name, "model_name" if name.startswith("vllm:") else "model") for name in names]


class _EngineState(Collector):
    """The current state of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @override
    def collect(self) -> Iterator[Metric]:
        engine, state = self._engine, self._engine.state()
        yield _gauge("texts_running", "Answers that are written now.", state.running)
        yield _gauge("texts_waiting", "Answers that wait for room.", state.waiting)
        yield _gauge("requests_open", "Requests that have not ended.", state.requests)
        yield _gauge("cache_pages_held", "Pages that texts hold.", state.pages_held)
        yield _gauge("cache_pages_most", "Pages that there may be.", state.pages_most)
        yield _gauge("engine_up", "1 while the engine takes requests.", int(engine.accepts))
        yield CounterMetricFamily("gptrs_steps", "Steps since the start.", state.steps)
        # Models of one engine share its steps and pages, so each of these has the whole.
        name = next(iter(engine.models))
        held = state.pages_held / state.pages_most if state.pages_most else 0.0
        for word, text, value in (
            ("num_requests_running", "Answers that are written now.", state.running),
            ("num_requests_waiting", "Answers that wait for room.", state.waiting),
            ("kv_cache_usage_perc", "Share of the pages that texts hold, 1 for all.", held),
        ):
            gauge = GaugeMetricFamily(f"vllm:{word}", text, labels=["model_name"])
            gauge.add_metric([name], value)
            yield gauge


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gptrs_{name}", text, value)


class _Reading(Collector):
    """The work outside the engine."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @override
    def collect(self) -> Iterator[Metric]:
        text = "Embeddings, rankings and classes that have not ended."
        yield _gauge("reading_requests", text, self._ledger.requests)


class Metrics:
    """Counters of requests and tokens, times of first tokens and gaps, and the engine's state."""

    def __init__(self, engine: Engine | None, ledger: Ledger) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gptrs_requests",
            "Requests that were answered, or refused.",
            ["path", "status"],
            registry=self._registry,
        )
        self._models = ModelMetrics()
        self._registry.register(self._models)
        self._registry.register(_Reading(ledger))
        if engine is not None:
            self._registry.register(_EngineState(engine))

    def answered(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    async def measured(
        self, stream: AnswerStream, take: TakeNow | None = None
    ) -> AsyncGenerator[list[Piece]]:
        """Yield the pieces of a stream as they come, and record their times.

        Pieces handled by `take` are recorded, too; see `AnswerStream.grown`.
        """
        # By answer: with n > 1 the pieces of answers interleave, and the time between two pieces of
        # different answers is no token gap.
        last: dict[int, float] = {}
        counts = self._models.of(stream.model)

        def noted(pieces: Sequence[Piece]) -> bool:
            taken = take is not None and take(pieces)
            if taken:
                _note(pieces, last, stream, counts)
            return taken

        try:
            while pieces := await stream.grown(take and noted):
                _note(pieces, last, stream, counts)
                yield pieces
        finally:
            # The generator ends, too, when the client has gone. Cancelling a stream that has ended
            # does nothing.
            stream.cancel()
            _note_end(stream, counts)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def _note(
    pieces: Sequence[Piece], last: dict[int, float], stream: AnswerStream, counts: ModelCounts
) -> None:
    """Record pieces that came now; `last` has the times of the previous ones, by answer."""
    now = time.perf_counter()
    if not last:
        counts.first.add(now - stream.submitted)
        # None for a text that was refused or cancelled while it waited.
        began = stream.texts[0].began
        if began is not None:
            counts.queue.add(began - stream.submitted)
    for piece in pieces:
        if piece.index in last:
            counts.gap.add(now - last[piece.index])
        last[piece.index] = now
        counts.generated += len(piece.tokens)
        if piece.finish_reason is not None:
            counts.ends[piece.finish_reason] += 1


def _note_end(stream: AnswerStream, counts: ModelCounts) -> None:
    written = sum(len(text.tokens) for text in stream.texts)
    note_facts(model=stream.model, prompt_tokens=stream.prompt_tokens, generated_tokens=written)
    counts.prompt += stream.prompt_tokens
    counts.cached += stream.cached_tokens
    counts.prompt_lengths.add(stream.prompt_tokens)
    counts.whole.add(time.perf_counter() - stream.submitted)
    for text in stream.texts:
        counts.generated_lengths.add(len(text.tokens))
        if not text.ended:
            counts.ends["cancelled"] += 1
    guesses = guesses_of([stream])
    if guesses is not None:
        counts.accepted += guesses.accepted
        counts.rejected += guesses.proposed - guesses.accepted


def guesses_of(streams: Sequence[AnswerStream]) -> GuessCounts | None:
    """Return the counts of guessed tokens; None without guessing."""
    texts = [text.guesses for stream in streams for text in stream.texts]
    counts = [guesses.counts for guesses in texts if guesses is not None]
    return sum(counts, GuessCounts()) if counts else None
