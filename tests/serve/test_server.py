"""The server besides OpenAI's forms: who may ask, limits, clients that go away, the end."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest
from safetensors.numpy import save_file
from starlette.routing import Route

import gptrs
from gptrs.errors import BackendError, UsageError
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.listening import new_listener, run_app
from gptrs_serve.pools import Pool
from gptrs_serve.problems import LOCAL_HOSTS, PAGE_FILES
from gptrs_serve.served import Served, with_adapters
from runtime.serving_models import eventually
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_heads import save_tiny_head
from serve.clients import cache_of, held, http, leaving, post
from serve.conftest import serving

httpx = pytest.importorskip("httpx", reason="the HTTP client httpx is not installed")
LONG = {"model": "tiny", "prompt": "the cat", "max_tokens": 100, "ignore_eos": True}


def test_tokens_there_and_back(address, model):
    tokens = post(address, "/tokenize", {"prompt": "für Elise"}).json()
    assert tokens["tokens"] == model.tokenizer.encode("für Elise")
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 256)
    back = post(address, "/detokenize", {"tokens": tokens["tokens"]}).json()
    assert back["prompt"] == "für Elise"
    messages = [{"role": "user", "content": "hi"}]
    rendered = post(address, "/tokenize", {"messages": messages}).json()["tokens"]
    assert rendered == model.prompt_tokens(messages)
    assert post(address, "/detokenize", {"tokens": [10**6]}).status_code == 400


def test_health_and_metrics(address):
    assert http.get(f"{address}/health").json() == {"status": "ok"}
    before = post(address, "/v1/completions", {**LONG, "max_tokens": 3}).json()["usage"]
    assert before["completion_tokens"] == 3
    text = http.get(f"{address}/metrics").text
    assert 'gptrs_requests_total{path="/v1/completions",status="200"}' in text
    assert "gptrs_texts_running 0.0" in text
    assert "gptrs_first_token_seconds_bucket" in text


def test_a_lost_process_of_the_model_is_told_and_ends_the_server(model, monkeypatch):
    reasons = [None]

    class Leading:
        name = "leading"

        def lost(self):
            return reasons[-1]

    monkeypatch.setattr(model, "backend", Leading())
    served = Served({"tiny": model}, None, 9)
    app = new_app(served, Access())

    async def health():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get("http://localhost/health")

    assert asyncio.run(health()).status_code == 200
    with new_listener("127.0.0.1", 0) as listener, ThreadPoolExecutor() as threads:
        ends = threads.submit(run_app, app, listener, 30, served.lost)
        reasons.append("process 1 of the model is gone")
        with pytest.raises(BackendError, match="process 1 of the model is gone"):
            ends.result(120)
    eventually(lambda: not any(isinstance(each, threading.Timer) for each in threading.enumerate()))
    told = asyncio.run(health())
    assert told.status_code == 503
    assert told.json()["error"]["message"] == "process 1 of the model is gone"


def test_few_of_many_connections_are_accepted_at_a_time(monkeypatch):
    """Those that wait keep their places in the queue of the system."""
    queued = []
    app = new_app(Served({}, None, 9), Access())
    with new_listener("127.0.0.1", 0) as listener:
        monkeypatch.setattr(socket.socket, "listen", lambda _, most: queued.append(most))
        with pytest.raises(BackendError, match="it is over"):
            run_app(app, listener, 1, lambda: "it is over")
    assert queued == [32, 2048]  # asyncio accepts as many at a time as it asks for


def test_the_openapi_page_describes_every_route(address, model):
    jsonschema = pytest.importorskip("jsonschema")
    page = http.get(f"{address}/openapi.json").json()
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in new_app(Served({"tiny": model}, None, 9), Access()).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    shown = {(path, method) for path, ways in page["paths"].items() for method in ways}
    assert routes - shown == {(path, "get") for path in (*PAGE_FILES, "/page.json")}
    assert shown <= routes
    schema = {"$ref": "#/components/schemas/ChatBody", "components": page["components"]}
    asked = {"messages": [{"role": "user", "content": "hi"}], "tool_choice": "auto", "tools": []}
    jsonschema.validate(asked, schema)
    for wrong in ({**asked, "n": 0}, {**asked, "unknown": 1}, {"messages": []}, {"messages": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        assert post(address, "/v1/chat/completions", wrong).status_code == 400


@pytest.mark.parametrize(
    ("content", "headers", "status", "message"),
    [
        (b"{", {}, 400, "the body is not JSON"),
        (b'{"prompt": ' + b"[" * 5000, {}, 400, "`prompt[0][0]`: Expected `int`"),
        (b"{}", {"Expect": "tea"}, 417, "this server meets `100-continue`"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "send `Content-Type: application/json`"),
        (b" " * 5_000_000, {}, 413, "the body has more than 4000000 bytes"),
        (b'{"prompt": [1, "a"]}', {}, 400, "`prompt` mixes texts, tokens"),
        (b'{"prompt": "a", "suffix": "b"}', {}, 400, "has no tokens that mark a gap"),
        (b'{"prompt": "a", "n": 2, "best_of": 3}', {}, 400, "`best_of` other than `n`"),
        (b'{"prompt": [999999]}', {}, 400, "token 999999 is not in the vocabulary"),
        (json.dumps({"prompt": ["a"] * 1025}).encode(), {}, 400, "at most 1024 prompts, got 1025"),
        # Those of one prompt are as many as the model reads.
        (json.dumps({"prompt": [1] * 1025}).encode(), {}, 400, "1025 prompt tokens and 16 new"),
    ],
)
def test_bodies_that_are_refused(address, content, headers, status, message):
    sent = {"Content-Type": "application/json", **headers}
    told = http.post(f"{address}/v1/completions", content=content, headers=sent)
    assert told.status_code == status
    error = told.json()["error"]
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_short_prompts_take_no_way_by_another_thread(address, monkeypatch):
    """There and back it takes longer than their tokens."""
    taken: list[object] = []
    run = Pool.run
    monkeypatch.setattr(Pool, "run", lambda self, work: taken.append(work) or run(self, work))
    for prompt in ("the cat", [1, 2, 3]):
        assert (
            post(address, "/v1/completions", {"prompt": prompt, "max_tokens": 1}).status_code == 200
        )
    assert taken == []
    long = post(address, "/v1/completions", {"prompt": "the cat, " * 250, "max_tokens": 1})
    assert "do not fit" in long.json()["error"]["message"]
    assert len(taken) == 1


def test_paths_and_methods_that_there_are_not(address):
    assert http.get(f"{address}/v1/nothing").json()["error"]["code"] == "not_found"
    refused = http.get(f"{address}/v1/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert refused.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "name", "coding"),
    [
        ("/v1/completions", "Content-Encoding", "gzip"),
        ("/v1/completions", "Transfer-Encoding", "gzip, chunked"),
        ("/v1/audio/transcriptions", "Content-Encoding", "gzip"),
    ],
)
def test_a_body_that_is_packed_is_refused(address, path, name, coding):
    packed = gzip.compress(json.dumps({"prompt": "x"}).encode())
    kind = "multipart/form-data; boundary=a" if "audio" in path else "application/json"
    headers = {"Content-Type": kind, name: coding}
    # httpx would send no unknown coding of a transfer.
    connection = HTTPConnection(address.removeprefix("http://"))
    connection.request("POST", path, packed, headers, encode_chunked=True)
    told = connection.getresponse()
    assert (told.status, f"`{name}: {coding}`" in told.read().decode()) == (415, True)
    connection.close()


def test_a_body_of_no_coding_is_plain(address):
    headers = {"Content-Encoding": ""}
    body = {"prompt": "x", "max_tokens": 1}
    assert http.post(f"{address}/v1/completions", json=body, headers=headers).status_code == 200


def test_a_body_may_begin_with_a_byte_order_mark_and_a_path_end_in_a_slash(address):
    body = {"prompt": "x", "max_tokens": 1}
    sent = {"Content-Type": "application/json", "Expect": "100-continue"}
    for text in (json.dumps(body), json.dumps({**body, "n": None})):
        content = b"\xef\xbb\xbf" + text.encode()
        told = http.post(f"{address}/v1/completions/", content=content, headers=sent)
        assert (told.status_code, told.json()["object"]) == (200, "text_completion")
    assert http.get(f"{address}/v1/models/tiny/").json()["id"] == "tiny"
    assert http.get(f"{address}/health//").json() == {"status": "ok"}


def test_keys_hosts_and_origins(model):
    access = Access(keys=["one", "two"], hosts=LOCAL_HOSTS, origins=["https://app.example"])
    with serving({"tiny": model}, access) as (address, _):
        get = lambda path, **headers: http.get(f"{address}{path}", headers=headers)  # noqa: E731
        assert get("/v1/models").status_code == 401
        assert get("/v1/models", Authorization="Bearer three").status_code == 401
        assert get("/v1/models", Authorization="Bearer two").status_code == 200
        assert get("/health").status_code == 200
        assert get("/health", Host="rebound.example").status_code == 403
        told = get("/health", Origin="https://app.example")
        assert told.headers["access-control-allow-origin"] == "https://app.example"
        told = get("/health", Origin="https://other.example")
        assert "access-control-allow-origin" not in told.headers


def test_more_requests_than_it_takes_are_told_to_try_later(model):
    with (
        serving({"tiny": model}, most_requests=1) as (address, engine),
        ThreadPoolExecutor(1) as pool,
    ):
        with held(engine):
            first = pool.submit(post, address, "/v1/completions", LONG)
            eventually(lambda: engine.state().requests == 1)
            told = post(address, "/v1/completions", LONG)
        assert (told.status_code, told.headers["retry-after"]) == (429, "1")
        assert first.result().status_code == 200
        eventually(lambda: engine.state().requests == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_away_leave_nothing(model, stream):
    """Whether their request waits, is read, or is written."""
    body = {**LONG, "prompt": "the cat " * 40, "stream": stream}
    with serving({"tiny": model}, most_running=2) as (address, engine):
        for number in range(12):
            with leaving(address, "/v1/completions", json=body):
                time.sleep(0.004 * number)  # at any moment
        assert post(address, "/v1/completions", {**LONG, "max_tokens": 2}).status_code == 200
        eventually(lambda: engine.state().requests == 0 == engine.state().pages_held)


def test_an_error_while_a_stream_is_written_is_an_event(model, monkeypatch):
    # With its tokens: two alone may be half a character, which is no event of text.
    body = {**LONG, "stream": True, "return_token_ids": True}
    steps, go = [], threading.Event()
    with serving({"tiny": model}) as (address, engine):
        cache = cache_of(engine)

        def fail_in_the_third(rows, run=cache.run):
            steps.append(rows)
            if len(steps) < 3:
                return run(rows)
            assert go.wait(120)
            raise RuntimeError("simulated")

        monkeypatch.setattr(cache, "run", fail_in_the_third)
        with http.stream("POST", f"{address}/v1/completions", json=body) as one:
            lines = one.iter_lines()
            next(lines)
            go.set()
            events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "server_error"


def test_embeddings(tmp_path, model):
    import base64

    import numpy as np

    import gptrs

    embedder = load_model(save_tiny_bert(tmp_path / "bert"), backend="ref")
    with serving({"tiny": model, "bert": embedder}) as (address, _):
        body = {"model": "bert", "input": ["the cat", "a dog"]}
        told = post(address, "/v1/embeddings", body).json()
        packed = post(address, "/v1/embeddings", {**body, "encoding_format": "base64"}).json()
        assert post(address, "/v1/embeddings", {**body, "model": "tiny"}).status_code == 400
        assert post(address, "/v1/completions", {**LONG, "model": "bert"}).status_code == 400
    expected = gptrs.embed(embedder, ["the cat", "a dog"])
    np.testing.assert_allclose([one["embedding"] for one in told["data"]], expected, rtol=1e-5)
    decoded = np.frombuffer(base64.b64decode(packed["data"][1]["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, expected[1], rtol=1e-5)


def test_clients_who_ask_at_once_share_the_calls_of_an_embedder(tmp_path, model, monkeypatch):
    embedder = load_model(save_tiny_bert(tmp_path / "bert"), backend="ref")
    texts = [f"the cat {'sat ' * (n % 4)}home" for n in range(12)]
    expected = gptrs.embed(embedder, texts)
    sizes, first, embed = [], threading.Event(), gptrs.embed

    @functools.wraps(embed)
    def counted(model, texts, **options):
        sizes.append(len(texts))
        if len(sizes) == 1:
            assert first.wait(120)
        return embed(model, texts, **options)

    monkeypatch.setattr("gptrs_runtime.embedding.embed.embed", counted)

    async def ask(address):
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
            asked = [
                asyncio.create_task(client.post("/v1/embeddings", json={"input": text}))
                for text in texts
            ]
            all_wait = f"gptrs_reading_requests {len(texts)}.0"
            while all_wait not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
            first.set()
            return [
                answer.json()["data"][0]["embedding"] for answer in await asyncio.gather(*asked)
            ]

    with serving({"tiny": model, "embedder": embedder}) as (address, _):
        found = asyncio.run(ask(address))
    assert np.allclose(found, expected, atol=1e-6)
    assert len(sizes) <= 2, sizes
    assert sum(sizes) == len(texts)


def test_documents_are_ranked(tmp_path, model):
    import gptrs

    ranker = load_model(
        save_tiny_head(tmp_path / "r", "ForSequenceClassification", ("LABEL_0",)), backend="ref"
    )
    texts = ["the cat sat", "a dog ran", "red houses"]
    expected = gptrs.rank(ranker, "the cat", texts)
    with serving({"tiny": model, "ranker": ranker}) as (address, _):
        documents = [texts[0], {"text": texts[1]}, texts[2]]
        body = {"query": "the cat", "documents": documents}
        told = post(address, "/v1/rerank", {**body, "return_documents": True}).json()
        best = post(address, "/rerank", {**body, "top_n": 1, "model": "ranker"}).json()
        wrong = post(address, "/v1/rerank", {**body, "model": "tiny"})
        assert post(address, "/tokenize", {"model": "ranker", "prompt": "a"}).status_code == 200
    results = told["results"]
    assert [one["index"] for one in results] == [one.index for one in expected]
    assert [one["relevance_score"] for one in results] == [
        pytest.approx(one.score, abs=1e-6) for one in expected
    ]
    assert [one["document"]["text"] for one in results] == [one.text for one in expected]
    assert best["results"] == [{key: results[0][key] for key in ("index", "relevance_score")}]
    assert "it offers causal_lm" in wrong.json()["error"]["message"]


def test_texts_are_classified(tmp_path, model):
    import gptrs

    labels = ("NEGATIVE", "NEUTRAL", "POSITIVE")
    folder = save_tiny_head(tmp_path / "c", "ForSequenceClassification", labels)
    classifier = load_model(folder, backend="ref")
    texts = ["the cat sat", "a dog ran"]
    expected = gptrs.classify(classifier, texts)
    with serving({"tiny": model, "classes": classifier}) as (address, _):
        told = post(address, "/v1/classify", {"input": texts}).json()
        one = post(address, "/classify", {"input": texts[1], "model": "classes"}).json()
        wrong = post(address, "/v1/classify", {"input": texts, "model": "tiny"})
        none = post(address, "/v1/classify", {"input": []})
    assert (told["object"], told["model"], told["usage"]["total_tokens"]) == ("list", "classes", 10)
    for index, (found, scores) in enumerate(zip(told["data"], expected, strict=True)):
        assert (found["index"], found["label"], found["num_classes"]) == (index, scores[0].label, 3)
        by_label = {score.label: score.score for score in scores}
        assert found["probs"] == pytest.approx([by_label[label] for label in labels], abs=1e-6)
    # Alone a text is summed in another order by some BLAS kernels that ref runs on.
    probs = pytest.approx(told["data"][1]["probs"], abs=1e-6)
    assert one["data"] == [{**told["data"][1], "index": 0, "probs": probs}]
    assert "it offers causal_lm" in wrong.json()["error"]["message"]
    assert none.status_code == 400


def test_names_in_texts_are_found(tmp_path, model):
    import gptrs

    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    folder = save_tiny_head(tmp_path / "t", "ForTokenClassification", labels)
    tagger = load_model(folder, backend="ref")
    texts = ["the cat sat in red houses", "a dog ran"]
    with serving({"tiny": model, "names": tagger}) as (address, _):
        told = post(address, "/v1/tag", {"input": texts, "aggregation": "first"}).json()
        wrong = post(address, "/v1/tag", {"input": texts, "aggregation": "last"})
    expected = gptrs.tag(tagger, texts, "first")
    assert any(expected)
    for found, entities in zip(told["data"], expected, strict=True):
        assert found["entities"] == [
            {"label": each.label, "score": pytest.approx(each.score, abs=1e-6),
             "start": each.start, "end": each.end, "text": each.text} for each in entities
        ]  # fmt: skip
    assert "`aggregation`" in wrong.json()["error"]["message"]


def test_a_request_alone_and_among_others_gives_the_same_tokens(tmp_path, monkeypatch):
    """On numba, whose steps are equal to the bit whatever else they take, but for AMX."""
    monkeypatch.setenv("GPTRS_NUMBA_AMX", "0")
    quick = load_model(save_tiny_chat(tmp_path / "tiny"), backend="numba")
    asked = {"temperature": 1, "max_tokens": 24, "logprobs": 2, "prompt": "the cat and"}
    bodies = [{**asked, "seed": n, "prompt": "the dog " * (n % 5) + "x"} for n in range(15)]

    async def together(address):
        async with httpx.AsyncClient(base_url=address, timeout=300) as client:
            url = "/v1/completions"
            one = {**asked, "seed": 99}
            alone = (await client.post(url, json=one)).json()["choices"]
            told = await asyncio.gather(
                *(client.post(url, json=body) for body in (*bodies[:7], one, *bodies[7:]))
            )
            return alone, told[7].json()["choices"]

    with serving({"tiny": quick}) as (address, _):
        alone, among = asyncio.run(together(address))
    assert alone == among


def test_the_command_serves_until_it_is_told_to_stop(model):
    environment = {**os.environ, "GPTRS_SERVE_API_KEY": "secret"}
    command = [sys.executable, "-m", "gptrs_cli", "serve", f"tiny={model.files.path}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--backend", "ref"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        try:
            address = process.stderr.readline().split()[-1]
            assert post(address, "/v1/completions", LONG).status_code == 401
            key = {"Authorization": "Bearer secret"}
            with http.stream(
                "POST", f"{address}/v1/completions", json={**LONG, "stream": True}, headers=key,
                timeout=60,
            ) as answer:  # fmt: skip
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"  # not cut short
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_outlive_the_drain_are_told_so(model, stream, monkeypatch):
    """Which a client else could not tell from a connection that broke."""
    steps = []
    with (
        ThreadPoolExecutor(1) as pool,
        serving({"tiny": model}, drain_seconds=0) as (address, engine),
    ):
        cache = cache_of(engine)

        def held_in_the_fourth(rows, run=cache.run):
            steps.append(rows)
            if len(steps) > 3:
                eventually(lambda: not engine._loop.alive)  # until it is told to stop
            return run(rows)

        monkeypatch.setattr(cache, "run", held_in_the_fourth)
        asked = pool.submit(post, address, "/v1/completions", {**LONG, "stream": stream})
        eventually(lambda: len(steps) > 3)
    told = asked.result()
    assert "the server shut down before the answer was complete" in told.text
    assert told.status_code == (200 if stream else 503)
    assert told.text.endswith("data: [DONE]\n\n") == stream


def test_small_packets_do_not_wait_for_each_other():
    """asyncio sees to that on sockets that state their protocol; else a stream stalls for 40 ms."""
    with new_listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_server_that_guesses_gives_the_same_and_tells(model, address):
    asked = {**LONG, "prompt": "the cat the cat the cat the", "seed": 2, "temperature": 0.2}
    plain = post(address, "/v1/completions", asked).json()
    assert "completion_tokens_details" not in plain["usage"]
    with serving({"tiny": model}, prompt_lookup=True, drafts={"tiny": model}) as (guessing, _):
        made = post(guessing, "/v1/completions", asked).json()
        told = made["usage"]["completion_tokens_details"]
        metrics = http.get(f"{guessing}/metrics").text
    assert made["choices"] == plain["choices"]
    accepted = told["accepted_prediction_tokens"]
    assert f'guessed_tokens_total{{model="tiny",outcome="accepted"}} {accepted}.0' in metrics
    with pytest.raises(UsageError, match="not a model of the engine"):
        Engine({"tiny": model}, drafts={"other": model})


def test_an_adapter_is_a_model_of_its_own_name(model, tmp_path):
    folder = tmp_path / "sql"
    folder.mkdir()
    layer = next(
        (name, module)
        for name, module in model.named_modules().items()
        if name.endswith("c_attn") or name.endswith("q_proj")
    )
    name, (inputs, outputs) = layer[0], layer[1].weight.shape
    if not name.endswith("c_attn"):
        inputs, outputs = outputs, inputs
    rng = np.random.default_rng(2)
    factors = {"A": rng.normal(size=(3, inputs)), "B": rng.normal(size=(outputs, 3))}
    save_file(
        {
            f"base_model.model.{name}.lora_{factor}.weight": values.astype(np.float32)
            for factor, values in factors.items()
        },
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    adapted = with_adapters({"tiny": model}, [f"tiny:sql={folder}"])
    asked = {**LONG, "max_tokens": 10, "temperature": 0}
    with serving(adapted) as (address, _):
        listed = http.get(f"{address}/v1/models").json()["data"]
        texts = [
            post(address, "/v1/completions", {**asked, "model": name}).json() for name in adapted
        ]
    assert [each["id"] for each in listed] == ["tiny", "sql"]
    assert [text["model"] for text in texts] == ["tiny", "sql"]
    fields = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    alone = gptrs.generate(adapted["sql"], "the cat", **fields)
    assert texts[1]["choices"][0]["text"] == alone.text
    assert texts[0]["choices"][0]["text"] != alone.text
