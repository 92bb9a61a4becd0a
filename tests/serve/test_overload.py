"""Requests that wait or take too long are ended, and told when to come again."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from gptrs.errors import EngineBusyError, TimeLimitError
from gptrs_runtime.serving.engine import Engine
from serve.conftest import serving
from serve.test_server import post


class Held:
    """A logits processor that waits at each token."""

    def __init__(self):
        self.go = threading.Event()

    def __call__(self, tokens, logits):
        self.go.wait(0.05)
        return logits


def test_a_request_that_waits_too_long_is_busy(model):
    held = Held()
    with Engine(model, most_running=1, most_wait=0.3) as engine:
        first = engine.submit("x", logits_processors=[held], max_tokens=40, ignore_eos=True)
        begun = time.monotonic()
        with pytest.raises(EngineBusyError, match="the longest that one may") as busy:
            engine.submit("y", max_tokens=1).result()
        assert time.monotonic() - begun < 5
        assert busy.value.retry_after == 0.3
        held.go.set()
        assert first.result()[0].finish_reason == "length"  # it has begun


def test_a_busy_engine_tells_when_an_answer_will_have_ended(model):
    class Slow:
        def __call__(self, tokens, logits):
            time.sleep(0.1)
            return logits

    asked = {"logits_processors": [Slow()], "ignore_eos": True}
    with Engine(model, most_running=1, most_requests=4) as engine:
        for stream in [engine.submit("x", max_tokens=3, **asked) for _ in range(4)]:
            stream.result()
        streams = [engine.submit("x", max_tokens=40, **asked) for _ in range(4)]
        with pytest.raises(EngineBusyError, match="the most it takes") as busy:
            engine.submit("y")
        for stream in streams:
            stream.cancel()
    # Those before took at least 0.3 s each.
    assert busy.value.retry_after > 0.25


def test_a_time_limit_ends_the_answer(model):
    with Engine(model) as engine:
        stream = engine.submit(
            "x", logits_processors=[Held()], max_tokens=90, ignore_eos=True, time_limit=0.3
        )
        with pytest.raises(TimeLimitError, match="its time limit"):
            stream.result()
        assert engine.submit("y", max_tokens=1, time_limit=60).result()[0].token_ids


def test_the_server_tells_when_to_come_again(model):
    with serving({"tiny": model}, most_output=240, most_running=1, most_wait=0.01) as (address, _):
        body = {"prompt": "x", "max_tokens": 230, "ignore_eos": True}
        answers = []

        def ask():
            answers.append(httpx.post(f"{address}/v1/completions", json=body, timeout=50))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    busy = [answer for answer in answers if answer.status_code == 429]
    assert 1 <= len(busy) <= 2
    assert all(answer.headers["Retry-After"] == "1" for answer in busy)


def test_a_request_may_have_a_time_limit(address):
    body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "n": 9, "max_time": 0.0001}
    told = post(address, "/v1/completions", body)
    assert told.status_code == 504
    assert told.json()["error"]["code"] == "time_limit"
    assert post(address, "/v1/completions", {**body, "max_time": 0}).status_code == 400
