"""Streams: what waits comes together, and what is encoded beforehand is as if it were not."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gptrs_runtime.serving.answers import Piece
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.events import Chunks, QuickEvents
from gptrs_serve.metrics import ModelMetrics
from gptrs_serve.requests import Envelope
from runtime.serving_models import eventually
from serve.clients import held


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


def _read_taking(engine, take):
    """Return the pieces that `take` and the task of a stream got, and its text."""
    taken, left = [], []

    def noted(pieces):
        if take(len(taken) + len(left)):
            taken.extend(pieces)
            return True
        return False

    async def read(stack):
        # No step begins before this task waits for the first piece.
        stack.enter_context(held(engine))
        stream = engine.submit("the cat", max_tokens=20, ignore_eos=True)
        asyncio.get_running_loop().call_soon(stack.close)
        while pieces := await stream.grown(noted):
            left.extend(pieces)
        return stream.texts[0]

    with ExitStack() as stack:
        text = asyncio.run(read(stack))
    return taken, left, text


def test_pieces_are_taken_before_the_task_wakes(model):
    with Engine(model) as engine:
        taken, left, text = _read_taking(engine, lambda _: True)
    assert taken
    assert [token for piece in [*taken, *left] for token in piece.tokens] == text.tokens


def test_what_is_not_taken_is_left_to_the_task_in_order(model):
    with Engine(model) as engine:
        taken, left, text = _read_taking(engine, lambda _: False)
    assert not taken
    assert [token for piece in left for token in piece.tokens] == text.tokens


def test_an_error_of_who_takes_ends_its_stream_alone(model):
    def fail(_):
        raise RuntimeError("no")

    async def read(engine):
        other = engine.submit("the dog", max_tokens=20, ignore_eos=True)
        with pytest.raises(RuntimeError, match="no"):
            await engine.submit("the cat", max_tokens=20, ignore_eos=True).grown(fail)
        return await other.aresult()

    with Engine(model) as engine:
        (found,) = asyncio.run(read(engine))
    assert len(found.token_ids) == 20


class _Writer:
    def __init__(self, ready):
        self.ready = ready
        self.written = []

    def write(self, body):
        self.written.append(body)


@pytest.mark.parametrize("ready", [True, False])
def test_events_are_written_by_connections_that_are_ready(ready):
    writer = _Writer(ready)
    quick = QuickEvents(lambda pieces: b"".join(piece.text.encode() for piece in pieces))
    pieces = [Piece(0, text, (1,), (), None) for text in ("a", "", "b")]
    assert not quick(pieces)
    quick.writer = writer
    assert quick(pieces) is ready
    assert writer.written == ([b"ab"] if ready else [])


@pytest.mark.parametrize("text", ['"\\ \n', "für 🐈", "</script>\x00\u2028"])
@pytest.mark.parametrize("more", [{}, {"usage": None}])
def test_a_text_is_encoded_as_any_chunk(text, more):
    def choice(index, text):
        return {"index": index, "delta": {"content": text}, "finish_reason": None}

    chunks = Chunks(Envelope("cmpl", "text_completion", 'a "model"'), choice, **more)
    for index in (0, 3, 0):
        assert chunks.text(index, text) == chunks.of([choice(index, text)])


def test_times_are_counted_as_prometheus_has_it():
    metrics, registry = ModelMetrics(), CollectorRegistry()
    registry.register(metrics)
    counts = metrics.of("m")
    counts.generated += 3
    for seconds in (0.004, 0.005, 0.2, 100):
        counts.gap.add(seconds)
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.split() for line in lines if not line.startswith("#"))
    found = {name: float(value) for name, value in samples}
    assert found['gptrs_generated_tokens_total{model="m"}'] == 3
    assert found['vllm:generation_tokens_total{model_name="m"}'] == 3
    gap, of = "gptrs_token_gap_seconds", 'model="m"'
    edges = ("0.005", "0.1", "60.0", "+Inf")
    assert [found[f'{gap}_bucket{{le="{edge}",{of}}}'] for edge in edges] == [2, 2, 3, 4]
    assert (found[f"{gap}_count{{{of}}}"], found[f"{gap}_sum{{{of}}}"]) == (
        4,
        pytest.approx(100.209),
    )
