"""Streams: what waits comes together, and what is encoded beforehand is as if it were not."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gptrs.runtime.serving.engine import Engine
from gptrs_serve.answers import Envelope
from gptrs_serve.chunks import Chunks
from gptrs_serve.token_counts import TokenCounts
from runtime.serving_models import eventually


def test_pieces_that_wait_come_together(model):
    async def read(engine):
        stream = engine.submit("the cat", max_tokens=5, ignore_eos=True, answers=2)
        await asyncio.to_thread(eventually, lambda: stream.done)
        return await stream.grown(), await stream.grown(), stream.texts

    with Engine(model) as engine:
        pieces, rest, texts = asyncio.run(read(engine))
    assert rest == []
    for index, text in enumerate(texts):
        mine = [piece for piece in pieces if piece.index == index]
        assert [token for piece in mine for token in piece.tokens] == text.tokens
        assert [piece.finish_reason for piece in mine] == [None] * 4 + ["length"]


@pytest.mark.parametrize("text", ['"\\ \n', "für 🐈", "</script>\x00\u2028"])
@pytest.mark.parametrize("more", [{}, {"usage": None}])
def test_a_text_is_encoded_as_any_chunk(text, more):
    def choice(index, text):
        return {"index": index, "delta": {"content": text}, "finish_reason": None}

    chunks = Chunks(Envelope("cmpl", "text_completion", 'a "model"'), choice, **more)
    for index in (0, 3, 0):
        assert chunks.text(index, text) == chunks.of([choice(index, text)])


def test_times_are_counted_as_prometheus_has_it():
    counts, registry = TokenCounts(), CollectorRegistry()
    registry.register(counts)
    counts.tokens += 3
    for seconds in (0.004, 0.005, 0.2, 100):
        counts.gap.add(seconds)
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.split() for line in lines if not line.startswith("#"))
    found = {name: float(value) for name, value in samples}
    assert found["gptrs_generated_tokens_total"] == 3
    gap = "gptrs_token_gap_seconds"
    assert [found[f'{gap}_bucket{{le="{edge}"}}'] for edge in ("0.005", "0.1", "60.0", "+Inf")] == [
        2, 2, 3, 4,
    ]  # fmt: skip
    assert (found[f"{gap}_count"], found[f"{gap}_sum"]) == (4, pytest.approx(100.209))
