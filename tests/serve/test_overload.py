"""Requests that wait or take too long are ended, and told when to come again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gptrs.errors import EngineBusyError, TimeLimitError
from gptrs_runtime.serving import lane
from gptrs_runtime.serving.engine import Engine
from runtime.serving_models import eventually
from serve.clients import held, post
from serve.conftest import serving


class Held:
    """A logits processor that waits in the first step."""

    def __init__(self):
        self.go = threading.Event()

    def __call__(self, tokens, logits):
        assert self.go.wait(120)
        return logits


@pytest.fixture(autouse=True)
def looks_each_step(monkeypatch):
    """Requests that are overdue are looked for after each step, not ten times a second."""
    monkeypatch.setattr(lane, "_LOOK_S", 0.0)


def test_a_request_that_waits_too_long_is_busy(model):
    first_step = Held()
    fields = {"max_tokens": 40, "ignore_eos": True}
    with Engine(model, most_running=1, most_wait=300) as engine:
        first = engine.submit("x", logits_processors=[first_step], **fields)
        eventually(lambda: first.has_begun)
        other = engine.submit("y", max_tokens=1)
        other.submitted -= 300
        first_step.go.set()
        with pytest.raises(EngineBusyError, match="the longest that one may") as busy:
            other.result()
        assert busy.value.retry_after == 300
        assert first.result()[0].finish_reason == "length"  # it has begun


def test_a_busy_engine_tells_when_an_answer_will_have_ended(model):
    class Slow:
        def __call__(self, tokens, logits):
            time.sleep(0.02)
            return logits

    fields, last = {"max_tokens": 3, "ignore_eos": True}, Held()
    with Engine(model, most_running=1, most_requests=4) as engine:
        for stream in [engine.submit("x", logits_processors=[Slow()], **fields) for _ in range(4)]:
            stream.result()
        streams = [engine.submit("x", logits_processors=[last], **fields) for _ in range(4)]
        with pytest.raises(EngineBusyError, match="the most it takes") as busy:
            engine.submit("y")
        for stream in streams:
            stream.cancel()
        last.go.set()
    # Those before took at least 0.06 s each.
    assert busy.value.retry_after > 0.05


def test_a_time_limit_ends_the_answer(model):
    class Slow:
        def __call__(self, tokens, logits):
            time.sleep(0.01)
            return logits

    with Engine(model) as engine:
        stream = engine.submit(
            "x", logits_processors=[Slow()], max_tokens=90, ignore_eos=True, time_limit=0.1
        )
        with pytest.raises(TimeLimitError, match="its time limit"):
            stream.result()
        assert engine.submit("y", max_tokens=1, time_limit=600).result()[0].token_ids


def test_the_server_tells_when_to_come_again(model):
    body = {"prompt": "x", "max_tokens": 230, "ignore_eos": True}
    with (
        serving({"tiny": model}, most_output=240, most_running=1, most_wait=1e-3) as served,
        ThreadPoolExecutor(3) as pool,
    ):
        address, engine = served
        with held(engine):
            asked = [pool.submit(post, address, "/v1/completions", body) for _ in range(3)]
            eventually(lambda: engine.state().requests == 3)
        answers = [each.result() for each in asked]
    busy = [answer for answer in answers if answer.status_code == 429]
    assert len(busy) == 2
    assert all(answer.headers["Retry-After"] == "1" for answer in busy)


def test_a_request_may_have_a_time_limit(address):
    body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "n": 9, "max_time": 0.0001}
    told = post(address, "/v1/completions", body)
    assert told.status_code == 504
    assert told.json()["error"]["code"] == "time_limit"
    assert post(address, "/v1/completions", {**body, "max_time": 0}).status_code == 400
