"""Work that precedes answers: bounded, in order, dropped with its client."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from gptrs.errors import EngineBusyError
from gptrs_runtime.chat.template import ChatTemplate
from gptrs_runtime.serving.engine import Engine
from gptrs_serve import accounts, completions, events
from gptrs_serve.accounts import MOST_BYTES, MOST_HELD_BYTES, Account, Ledger
from gptrs_serve.fields import MOST_OBJECTS
from gptrs_serve.pools import THREADS, Pool
from gptrs_serve.problems import RequestError, body_bytes
from gptrs_serve.token_texts import Rows, TokenTexts
from runtime.serving_models import eventually
from serve.clients import held, http, httpx, leaving, post
from serve.conftest import serving


def test_work_is_bounded_and_dropped_with_its_task():
    async def main():
        ledger, go, done = Ledger(THREADS + 1), threading.Event(), []
        pool = Pool("test", ledger)

        def work(number):
            go.wait(120)
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


def test_small_bodies_overtake_large_ones_and_large_ones_are_bounded():
    async def main():
        ledger, go, done = Ledger(100), threading.Event(), []
        pool = Pool("test", ledger)

        async def asked(name, size):
            body_bytes.set(size)
            await pool.run(lambda: (go.wait(120), done.append(name)))

        async def begun(name, size):
            task = asyncio.create_task(asked(name, size))
            await asyncio.sleep(0)
            return task

        # One thread is left to small bodies, however many large ones wait.
        tasks = [await begun("a", 4_000_000), await begun("b", 9_000_000), await begun("c", 10)]
        tasks += [await begun("d", 2_000_000), await begun("e", 10)]
        gone = await begun("gone", MOST_HELD_BYTES - 15_000_000)
        with pytest.raises(EngineBusyError, match="bodies of waiting requests take 128 MB"):
            await asked("too much", 20_000)
        gone.cancel()
        await asyncio.sleep(0)
        tasks.append(await begun("f", 20_000))
        assert ledger.requests == 6
        go.set()
        await asyncio.gather(*tasks)
        assert [name for name in done if name in "abdf"] == ["a", "f", "d", "b"]
        assert sorted(name for name in done if name in "ce") == ["c", "e"]
        assert (ledger.requests, ledger.bytes) == (0, 0)
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 1, "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x "}] * 10_000}]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}, {
            "role": "assistant", "content": [{"type": "thinking", "thinking": "y"}] * 10_000}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": "x "}] * 10_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x "}] * 10_000}),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "x "}] * 10_000}),
        ("/v1/completions", {"prompt": ["x " * 20] * 600, "max_tokens": 1}),
        ("/infill", {"input_prefix": "x " * 20_000, "input_suffix": ""}),
    ],
    ids=["blocks", "thoughts", "items", "messages", "ollama", "prompts", "infill"],
)  # fmt: skip
def test_large_bodies_are_not_read_on_the_event_loop(address, monkeypatch, path, body):
    """Other requests are answered while a thread reads one."""
    held, go = threading.Event(), threading.Event()
    thread = Pool._begin

    def begin(pool, loop):
        for entry in pool._waiting:
            work = entry.work
            entry.work = lambda work=work: (held.set(), go.wait(120), work())[-1]
        thread(pool, loop)

    monkeypatch.setattr(Pool, "_begin", begin)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(post, address, path, body)
        assert held.wait(120)
        assert http.get(f"{address}/health").status_code == 200
        go.set()
        assert asked.result().status_code in (200, 400)


@pytest.mark.parametrize("start", [b'{"a"', b'{ \n"a"'])
def test_bodies_of_many_objects_are_refused_before_they_are_decoded(address, start):
    data = b'{"messages":[' + b",".join([start + b":1}"] * (MOST_OBJECTS + 1)) + b"]}"
    headers = {"Content-Type": "application/json"}
    told = http.post(f"{address}/v1/chat/completions", content=data, headers=headers)
    assert told.status_code == 413
    assert f"{MOST_OBJECTS + 2} objects" in told.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_refused_bodies_are_freed_without_the_garbage_collector(address, path):
    """Errors of threads and tasks refer to their futures; only a traceback closes the cycle."""
    post(address, path, {"prompt": "x " * 300_000})  # whatever is made once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert post(address, path, {"prompt": "x " * 300_000}).status_code == 400
        gc.collect()
        frames = [each for each in gc.garbage if isinstance(each, types.TracebackType)]
        own = [each.tb_frame.f_code.co_qualname for each in frames]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert [name for name in own if "answering" in name or "Pool" in name] == []


def test_a_prompt_that_cannot_fit_is_not_tokenized(address, model, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "encode", lambda *_, **__: pytest.fail("encoded"))
    monkeypatch.setattr(ChatTemplate, "render_all", lambda *_: pytest.fail("rendered"))
    text = "the cat " * 90_000
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": text}]
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": messages}),
    ):
        told = post(address, path, {**body, "max_tokens": 1})
        assert told.status_code == 400
        assert told.json()["error"]["code"] == "context_length_exceeded"


def test_scores_run_in_the_engine_and_end_with_their_client(model):
    """Several prompts at once, whose client hangs up: nothing goes on."""
    prompts = [[1 + n % 9, *range(200)] for n in range(40)]
    body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1}
    with serving({"tiny": model}) as (address, engine):
        with held(engine):
            with leaving(address, "/v1/completions", json=body):
                eventually(lambda: engine.state().requests > 0)
            # As many calls that cancel as those that add.
            eventually(lambda: len(engine._loop._calls) == 2 * engine.state().requests)
        eventually(lambda: engine.state().requests == 0 == engine.state().running)
        assert engine.state().steps == 0


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


def test_prompts_that_come_back_are_bounded_together(address, monkeypatch):
    """In each of `n` answers, with the scores of their tokens, whole or streamed."""
    monkeypatch.setattr(accounts, "MOST_BYTES", 21_000)
    body = {"prompt": [[1, 2, 3, 4, 5]] * 4, "max_tokens": 0, "echo": True, "logprobs": 9}
    assert post(address, "/v1/completions", body).status_code == 200  # 20,000 bytes, and the texts
    for more in ({"prompt": [[1, 2, 3, 4, 5, 6]] * 4}, {"n": 2}, {"n": 2, "stream": True},
                 {"prompt": ["the cat " * 20] * 4, "n": 128, "logprobs": None}):  # fmt: skip
        told = post(address, "/v1/completions", {**body, **more})
        assert told.status_code == 400
        assert told.json()["error"]["param"] == "echo"
        assert "a request may take 21 kB" in told.json()["error"]["message"]


def test_answers_to_several_prompts_are_bounded_together(address, monkeypatch):
    monkeypatch.setattr(accounts, "MOST_BYTES", 20_000)
    body = {"prompt": ["x"] * 5, "max_tokens": 40, "logprobs": 0, "n": 1}
    assert post(address, "/v1/completions", body).status_code == 200  # 20,000 bytes
    told = post(address, "/v1/completions", {**body, "prompt": ["x"] * 6})
    assert told.status_code == 400
    assert "6 answers of 40 tokens" in told.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "n": 2, "logprobs": 1}),
        ("/v1/completions", {"prompt": "the cat", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 2,
                                  "max_tokens": 2, "logprobs": True}),
    ],
    ids=["answers", "scores", "chat"],
)  # fmt: skip
def test_long_answers_are_not_written_on_the_event_loop(address, monkeypatch, path, body):
    """Other requests are answered while a thread writes one; it is what a short one would be."""
    body = {**body, "temperature": 0, "ignore_eos": True}

    def told(answer):  # scores differ by the last bit where the cache has the prompt
        return json.loads(answer.content, parse_float=lambda _: 0.0)

    expected = told(post(address, path, body))
    writing, go = threading.Event(), threading.Event()
    named = TokenTexts._of

    def slow(texts, token):
        writing.set()
        assert go.wait(120)
        return named(texts, token)

    monkeypatch.setattr(events, "_MOST_ENTRIES", 0)
    monkeypatch.setattr(TokenTexts, "_of", slow)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(post, address, path, body)
        try:
            assert writing.wait(120)
            assert http.get(f"{address}/health").status_code == 200
        finally:
            go.set()
        found = told(asked.result())
    assert found["choices"] == expected["choices"]
    assert found["usage"]["total_tokens"] == expected["usage"]["total_tokens"]
    assert list(found) == list(expected)


def test_an_answer_that_fails_within_is_cut_and_logged(address, monkeypatch, caplog):
    def fails(texts, token):
        raise ZeroDivisionError("as a fault would")

    monkeypatch.setattr(events, "_MOST_ENTRIES", 0)
    monkeypatch.setattr(TokenTexts, "_of", fails)
    body = {"prompt": "the cat", "max_tokens": 2, "logprobs": 1}
    with pytest.raises(httpx.RemoteProtocolError):
        post(address, "/v1/completions", body)
    (told,) = [each for each in caplog.records if "failed" in each.getMessage()]
    assert isinstance(told.exc_info[1], ZeroDivisionError)


def test_an_answer_is_made_row_by_row_as_it_is_written():
    made = []
    rows = Rows(lambda number: made.append(number) or {"number": number}, range(3))
    answer = {"choices": iter([{"scores": rows}, {"scores": Rows(str, ())}]), "usage": made.copy}
    parts, counts = [], []
    for part in events._parts(answer):
        parts.append(part)
        counts.append(len(made))
    scores = [{"number": 0}, {"number": 1}, {"number": 2}]
    whole = {"choices": [{"scores": scores}, {"scores": []}], "usage": [0, 1, 2]}
    assert json.loads(b"".join(parts)) == whole
    assert {0, 1, 2, 3} == set(counts)  # none is made before those ahead of it are written


def test_others_are_answered_between_many_short_prompts(address, monkeypatch):
    turns, seen = [], []
    asked_prompt = completions.asked_prompt

    async def asked(*given):
        seen.append(len(turns))
        asyncio.get_running_loop().call_soon(turns.append, None)
        return await asked_prompt(*given)

    monkeypatch.setattr(completions, "asked_prompt", asked)
    assert post(address, "/v1/completions", {"prompt": ["a", "b", "c"]}).status_code == 200
    assert seen == [0, 1, 2]


def test_requests_of_all_kinds_count_together():
    ledger = Ledger(3, lambda: 2)
    ledger.begin()
    with pytest.raises(EngineBusyError, match="3 requests run or wait"):
        ledger.begin()
    ledger.end(0)
    ledger.begin()
