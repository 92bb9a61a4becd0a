"""Work that precedes answers: bounded, in order, dropped with its client."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from gptrs.errors import EngineBusyError
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.accounts import MOST_BYTES, Account, Ledger
from gptrs_serve.pools import THREADS, Pool
from gptrs_serve.problems import RequestError
from runtime.serving_models import eventually
from serve.conftest import serving
from serve.test_server import post


def test_work_is_bounded_and_dropped_with_its_task():
    async def main():
        ledger, go, done = Ledger(THREADS + 1), threading.Event(), []
        pool = Pool("test", ledger)

        def work(number):
            go.wait(20)
            done.append(number)
            return number

        def asked(number):
            return asyncio.create_task(pool.run(lambda: work(number)))

        running = [asked(number) for number in range(THREADS)]
        waits = asked(99)
        await asyncio.sleep(0.01)
        with pytest.raises(EngineBusyError, match="is the most allowed"):
            await pool.run(lambda: work(100))
        waits.cancel()
        await asyncio.sleep(0.01)
        assert ledger.requests == THREADS
        go.set()
        assert await asyncio.gather(*running) == list(range(THREADS))
        assert await pool.run(lambda: work(7)) == 7
        assert ledger.requests == 0
        assert sorted(done) == [*range(THREADS), 7]
        pool.close()

    asyncio.run(main())


def test_a_prompt_that_cannot_fit_is_not_tokenized(address, model, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_, **__: pytest.fail("encoded"))
    told = post(address, "/v1/completions", {"prompt": "the cat " * 90_000, "max_tokens": 1})
    assert told.status_code == 400
    assert told.json()["error"]["code"] == "context_length_exceeded"


def test_scores_run_in_the_engine_and_end_with_their_client(model):
    """Several prompts at once, whose client hangs up: nothing goes on."""
    with serving({"tiny": model}) as (address, engine):
        body = {"prompt": [[1 + n % 9, *range(200)] for n in range(40)], "max_tokens": 0}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(
                f"{address}/v1/completions",
                json={**body, "echo": True, "logprobs": 1},
                timeout=0.2,
            )
        eventually(lambda: engine.state().requests == 0)
        steps = engine.state().steps
        assert steps > 0
        eventually(lambda: engine.state().running == 0)


def test_scores_of_models_that_need_whole_prompts(address, monkeypatch):
    body = {"prompt": "the cat sat", "max_tokens": 0, "echo": True, "logprobs": 1}
    (one,) = post(address, "/v1/completions", body).json()["choices"]
    monkeypatch.setattr(Engine, "can_score", lambda *_: False)
    (other,) = post(address, "/v1/completions", body).json()["choices"]
    scores = one["logprobs"]["token_logprobs"], other["logprobs"]["token_logprobs"]
    assert scores[0][1:] == pytest.approx(scores[1][1:], abs=1e-5)


def test_one_account_tells_how_long_answers_may_be():
    def account(**fields):
        given = {"tokens": 3, "answers": 1, "length": None, "logprobs": 0, "room": 4000}
        return Account(**{**given, "most": None, **fields}).tokens_of_answer()

    assert account() == 4000
    assert account(length=9) == 9
    assert account(length=9000) == 4000
    assert account(most=7) == 7
    assert account(room=0, length=5) == 5
    with pytest.raises(RequestError, match="writes at most 7 tokens"):
        account(most=7, length=8)
    # 128 answers with their likeliest tokens would take gigabytes: cut where that is left open.
    assert account(answers=128, logprobs=20, length=900) == 900
    assert account(answers=128, logprobs=20) == MOST_BYTES // (128 * 21 * 100)
    with pytest.raises(RequestError, match=r"take 1\.08 GB, a request may take 256 MB"):
        account(answers=128, logprobs=20, length=4000)


def test_requests_of_all_kinds_count_together():
    ledger = Ledger(3, lambda: 2)
    ledger.begin()
    with pytest.raises(EngineBusyError, match="3 requests run or wait"):
        ledger.begin()
    ledger.end()
    ledger.begin()
