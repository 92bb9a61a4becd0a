"""Counts and times of tokens, cheap to add to: every token does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def _told(edge: float) -> str:
    return "+Inf" if edge == inf else str(float(edge))


class _Times:
    """A histogram of seconds."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._counts = [0] * (len(_SECONDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Add a time."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._total += seconds

    def family(self) -> Metric:
        """Return the histogram as the registry has it: each bucket holds those before it."""
        buckets: list[tuple[str, float]] = []
        sum_of_counts = 0
        for edge, count in zip((*_SECONDS, inf), self._counts, strict=True):
            sum_of_counts += count
            buckets.append((_told(edge), sum_of_counts))
        return HistogramMetricFamily(self._name, self._text, buckets, self._total)


class TokenCounts(Collector):
    """Tokens that were generated, and their times; one thread adds, and collects."""

    def __init__(self) -> None:
        self.tokens = 0
        self.first = _Times("gptrs_first_token_seconds", "From a request to its first token.")
        self.gap = _Times("gptrs_token_gap_seconds", "Between tokens of an answer.")

    @override
    def collect(self) -> Iterator[Metric]:
        text = "Tokens that were generated."
        yield CounterMetricFamily("gptrs_generated_tokens", text, self.tokens)
        yield self.first.family()
        yield self.gap.family()
