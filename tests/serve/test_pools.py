"""Work that precedes answers: bounded, in order, dropped with its client."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gptrs.errors import EngineBusyError
from gptrs_serve.pools import THREADS, Pool
from serve.test_server import post


def test_work_is_bounded_and_dropped_with_its_task():
    async def main():
        pool, go, done = Pool("test", THREADS + 1), threading.Event(), []

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
        assert pool.waiting == THREADS
        go.set()
        assert await asyncio.gather(*running) == list(range(THREADS))
        assert await pool.run(lambda: work(7)) == 7
        assert pool.waiting == 0
        assert sorted(done) == [*range(THREADS), 7]
        pool.close()

    asyncio.run(main())


def test_a_prompt_that_cannot_fit_is_not_tokenized(address, model, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_, **__: pytest.fail("encoded"))
    told = post(address, "/v1/completions", {"prompt": "the cat " * 90_000, "max_tokens": 1})
    assert told.status_code == 400
    assert told.json()["error"]["code"] == "context_length_exceeded"
