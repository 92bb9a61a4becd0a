"""Load on an engine or a server: a number of concurrent streams, and the speed of their tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gptrs_runtime.serving.engine import Engine

_SHORTEST, _LONGEST = 0.5, 1.5
"""Lengths of prompts and texts are spread between these shares of their mean."""


class LoadRequest(Struct, frozen=True):
    """A prompt as tokens, and how many are to follow."""

    tokens: Sequence[int]
    new_tokens: int


class TextTimes(Struct, frozen=True):
    """When a request was sent, when its pieces came, in seconds, and how many tokens they had."""

    sent: float
    came: Sequence[float]
    tokens: int


AskFor = Callable[[LoadRequest], Awaitable[TextTimes]]


class LoadRun(NamedTuple):
    """The seconds that a run took, and the times of each of its texts."""

    seconds: float
    texts: Sequence[TextTimes]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all texts a second."""
        return sum(text.tokens for text in self.texts) / self.seconds

    @property
    def first_token_ms(self) -> float:
        """The median of the times from a request to its first token."""
        return float(np.median(_first_ms(self.texts)))


class Spread(Struct, frozen=True):
    """A median and the interquartile range."""

    median: float
    low: float
    high: float


class LoadFigures(Struct, frozen=True):
    """The speed of answers with a number of streams; times in milliseconds.

    Rates are medians over the rounds, times are medians over all texts. Endings `_25`, `_75` and
    `_99` are percentiles.
    """

    streams: int
    over: str
    requests: int
    """Of a run."""
    requests_per_s: float
    tokens_per_s: float
    tokens_per_s_25: float
    tokens_per_s_75: float
    first_token_ms: float
    first_token_ms_99: float
    gap_ms: float
    gap_ms_99: float


def load_requests(
    count: int,
    vocab_size: int,
    prompt_tokens: int,
    new_tokens: int,
    seed: int | Sequence[int],
) -> list[LoadRequest]:
    """Return requests of random tokens; lengths are between half and one and a half of the mean.

    They are evenly spread there, in random order, so that the total does not depend on the seed.
    """
    dice = np.random.default_rng(seed)
    # The middles of equal parts, so that every draw has the same mean.
    shares = _SHORTEST + (_LONGEST - _SHORTEST) * (np.arange(count) + 0.5) / count

    def lengths(mean: int) -> list[int]:
        return [max(1, round(mean * share)) for share in dice.permutation(shares)]

    return [
        LoadRequest(dice.integers(0, vocab_size, prompt).tolist(), new)
        for prompt, new in zip(lengths(prompt_tokens), lengths(new_tokens), strict=True)
    ]


async def run_load(requests: Sequence[LoadRequest], clients: Sequence[AskFor]) -> LoadRun:
    """Have `clients` send the requests, each one after the other."""
    # Taken from the end by whichever client is free: a client with long texts does not delay the
    # run.
    waiting = list(reversed(requests))
    done: list[TextTimes] = []

    async def work(ask: AskFor) -> None:
        while waiting:
            done.append(await ask(waiting.pop()))

    started = time.perf_counter()
    await asyncio.gather(*(work(ask) for ask in clients))
    return LoadRun(time.perf_counter() - started, done)


def engine_client(engine: Engine) -> AskFor:
    """Return a client of an engine in this process; its texts are greedy and end at no token."""

    async def ask(request: LoadRequest) -> TextTimes:
        sent, came = time.perf_counter(), list[float]()
        last = sent
        stream = engine.submit(
            list(request.tokens),
            max_tokens=request.new_tokens,
            temperature=0,
            ignore_eos=True,
            # Otherwise several tokens arrive as one piece, and the gaps between tokens cannot be
            # seen.
            steps_at_once=1,
        )
        async for piece in stream:
            last = time.perf_counter()
            if piece.text:
                came.append(last)
        return TextTimes(sent, came or [last], sum(len(text.tokens) for text in stream.texts))

    return ask


def figures(over: str, streams: int, runs: Sequence[LoadRun]) -> LoadFigures:
    """Return the figures of several runs of as many requests."""
    texts = [text for run in runs for text in run.texts]
    first = _first_ms(texts)
    # A text of one token has no gap.
    gaps = [1000 * gap for text in texts for gap in np.diff(text.came)] or [0.0]
    rate = spread([run.tokens_per_s for run in runs])
    return LoadFigures(
        streams,
        over,
        requests=len(runs[0].texts),
        requests_per_s=float(np.median([len(run.texts) / run.seconds for run in runs])),
        tokens_per_s=rate.median,
        tokens_per_s_25=rate.low,
        tokens_per_s_75=rate.high,
        first_token_ms=float(np.median(first)),
        first_token_ms_99=float(np.percentile(first, 99)),
        gap_ms=float(np.median(gaps)),
        gap_ms_99=float(np.percentile(gaps, 99)),
    )


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of some values."""
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return Spread(median, low, high)


def rate_ratio(runs: Sequence[LoadRun], others: Sequence[LoadRun]) -> Spread:
    """Return how many times the tokens a second of `others` the runs made, round by round."""
    # Paired by round: what slows the machine for a while slows both, and cancels.
    return spread([a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, others, strict=True)])


def later_ms(runs: Sequence[LoadRun], others: Sequence[LoadRun]) -> Spread:
    """Return how much later than in `others` the first tokens came, in ms, round by round."""
    return spread([a.first_token_ms - b.first_token_ms for a, b in zip(runs, others, strict=True)])


def _first_ms(texts: Sequence[TextTimes]) -> list[float]:
    return [1000 * (text.came[0] - text.sent) for text in texts]
