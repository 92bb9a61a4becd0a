"""The server behind Ray Serve: the same routes, answered by replicas behind one door."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gptrs
from gptrs.errors import UsageError
from runtime.tiny_chat import save_tiny_chat

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from ray import serve  # noqa: E402

from gptrs_ray import serve_app  # noqa: E402
from gptrs_ray.cluster import joined  # noqa: E402
from gptrs_ray.serving import app as serving  # noqa: E402
from gptrs_ray.serving.relay import Asked, answered  # noqa: E402

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    chat = save_tiny_chat(tmp_path_factory.mktemp("ray") / "chat")
    models = {"demo": "demo", "chat": str(chat)}
    with joined("local"):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        app = serve_app(models, cpus=1, backend="ref", keys=("secret",), replicas=2, by_prefix=True)
        serve.run(app)
        headers = {"Authorization": "Bearer secret"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120
        ) as client:
            yield client
        serve.shutdown()


def test_completions_are_those_of_the_model(client):
    body = {"model": "demo", "prompt": "def f(", "max_tokens": 4, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    model = gptrs.load_model(backend="ref")
    alone = gptrs.generate(model, "def f(", max_tokens=4, temperature=0)
    assert answer.json()["choices"][0]["text"] == alone.text


def test_answers_are_streamed(client):
    body = {"prompt": "def f(", "max_tokens": 4, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 2


def test_a_key_is_needed(client):
    answer = client.get("/v1/models", headers={"Authorization": "Bearer other"})
    assert answer.status_code == 401


def test_requests_that_share_a_prompt_go_to_the_replica_that_has_read_it(client):
    """Four of them would meet in one of two replicas once in eight times by chance, per prompt."""
    for number in range(3):
        body = {"prompt": f"# {number}\n" + "def add(a, b):\n    pass\n" * 14, "max_tokens": 1}
        for turn in range(4):
            asked = {**body, "prompt": f"{body['prompt']}x = {turn}"}
            usage = client.post("/v1/completions", json=asked).json()["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 30) == (turn > 0)


def test_stored_responses_are_found_where_they_are_stored(client):
    body = {"model": "chat", "input": "hi", "max_output_tokens": 16}
    for _ in range(5):
        response = client.post("/v1/responses", json=body).json()
        body["previous_response_id"] = response["id"]
        assert client.get(f"/v1/responses/{response['id']}").status_code == 200


def test_what_no_replica_would_take_is_refused_at_the_door(client):
    told = client.post("/v1/completions", content=b" " * 4_000_001)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "body_too_large")


def test_a_version_of_ray_without_routers_is_told_or_serves_plainly(monkeypatch):
    monkeypatch.setattr(serving, "_ROUTER", None)
    with pytest.raises(UsageError, match="cannot route by prefixes"):
        serve_app({"demo": "demo"}, by_prefix=True)
    serve_app({"demo": "demo"}, replicas=2)
    with pytest.raises(UsageError, match="a range of them, got"):
        serve_app({"demo": "demo"}, replicas=(3, 2))


def test_an_application_learns_that_the_reader_of_its_answer_has_gone():
    seen = []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b", "more_body": True})
        seen.append((await receive())["type"])

    async def read():
        async with contextlib.aclosing(answered(app, Asked({}, b"asked", (), ""))) as parts:
            return [await anext(parts), await anext(parts)]

    assert asyncio.run(read()) == [(200, []), b"ab"]
    assert seen == [b"asked", "http.disconnect"]


def test_requests_to_a_replica_that_is_killed_are_answered_or_told(client):
    """Each request ends, with the text of the model or with an error; then another one answers."""
    body = {"prompt": "def f(", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(client.post, "/v1/completions", json=body) for _ in range(8)]
        time.sleep(0.1)
        end_replicas(1)
        answers = [each.result() for each in asked]
    deadline = time.monotonic() + 60
    while (answer := client.post("/v1/completions", json=body)).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    for each in (*answers, answer):
        if each.status_code == 200:
            assert each.json()["choices"][0]["text"] == expected
        else:
            assert each.status_code >= 500


def test_a_stream_of_a_replica_that_is_killed_ends_with_an_error(client):
    body = {"prompt": "def f(", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        end_replicas(2)
        assert "has ended; try it again" in [line for line in lines if line][-1]


def end_replicas(count: int) -> None:
    """Kill the processes of so many replicas with models."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if count and command.startswith(b"ray::ServeReplica") and b"gptrs-models" in command:
            os.kill(int(folder.name), signal.SIGKILL)
            count -= 1
    assert not count
