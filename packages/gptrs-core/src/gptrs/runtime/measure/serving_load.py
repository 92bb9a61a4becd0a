"""Load on an engine or a server: so many streams at once, and how fast their tokens come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs.runtime.serving.engine import Engine

_SHORTEST, _LONGEST = 0.5, 1.5
"""Lengths of prompts and texts are spread between these shares of their mean."""


@dataclass(frozen=True)
class LoadRequest:
    """A prompt as tokens, and how many are to follow."""

    tokens: Sequence[int]
    new_tokens: int


@dataclass(frozen=True)
class TextTimes:
    """When a request was sent, when its pieces came, in seconds, and how many tokens they had."""

    sent: float
    came: Sequence[float]
    tokens: int


AskFor = Callable[[LoadRequest], Awaitable[TextTimes]]


@dataclass(frozen=True)
class LoadFigures:
    """How fast requests of so many streams were answered; times in milliseconds."""

    streams: int
    over: str
    requests_per_s: float
    tokens_per_s: float
    first_token_ms: float
    """The median; the 99th percentile follows."""
    first_token_ms_99: float
    gap_ms: float
    gap_ms_99: float

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return asdict(self)


def load_requests(
    count: int, vocab_size: int, prompt_tokens: int, new_tokens: int, seed: int
) -> list[LoadRequest]:
    """Return requests of random tokens; lengths are between half and one and a half of the mean."""
    dice = np.random.default_rng(seed)

    def length(mean: int) -> int:
        return max(1, round(mean * dice.uniform(_SHORTEST, _LONGEST)))

    return [
        LoadRequest(
            dice.integers(0, vocab_size, length(prompt_tokens)).tolist(), length(new_tokens)
        )
        for _ in range(count)
    ]


async def run_load(
    requests: Sequence[LoadRequest], clients: Sequence[AskFor]
) -> tuple[float, list[TextTimes]]:
    """Have `clients` send the requests, each one after the other; return the seconds and times."""
    waiting = list(reversed(requests))
    done: list[TextTimes] = []

    async def work(ask: AskFor) -> None:
        while waiting:
            done.append(await ask(waiting.pop()))

    started = time.perf_counter()
    await asyncio.gather(*(work(ask) for ask in clients))
    return time.perf_counter() - started, done


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
            steps_at_once=1,
        )
        async for piece in stream:
            last = time.perf_counter()
            if piece.text:
                came.append(last)
        return TextTimes(sent, came or [last], sum(len(text.tokens) for text in stream.texts))

    return ask


def figures(over: str, streams: int, runs: Sequence[tuple[float, list[TextTimes]]]) -> LoadFigures:
    """Return the figures of several runs: the medians of rates, percentiles of all times."""
    texts = [text for _, times in runs for text in times]
    first = [1000 * (text.came[0] - text.sent) for text in texts]
    gaps = [1000 * gap for text in texts for gap in np.diff(text.came)] or [0.0]
    rates = [sum(text.tokens for text in times) / seconds for seconds, times in runs]
    asked = [len(times) / seconds for seconds, times in runs]
    return LoadFigures(
        streams,
        over,
        requests_per_s=float(np.median(asked)),
        tokens_per_s=float(np.median(rates)),
        first_token_ms=float(np.median(first)),
        first_token_ms_99=float(np.percentile(first, 99)),
        gap_ms=float(np.median(gaps)),
        gap_ms_99=float(np.percentile(gaps, 99)),
    )
