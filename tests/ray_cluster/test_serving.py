"""The server behind Ray Serve: the same routes, answered by replicas."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gptrs

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from ray import serve  # noqa: E402

from gptrs_ray import serve_app  # noqa: E402
from gptrs_ray.cluster import joined  # noqa: E402

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def client():
    with joined("local"):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(serve_app({"demo": "demo"}, cpus=1, backend="ref", keys=("secret",)))
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


def test_requests_to_a_replica_that_is_killed_are_answered_or_told(client):
    """Each request ends, with the text of the model or with an error; then another one answers."""
    body = {"prompt": "def f(", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(client.post, "/v1/completions", json=body) for _ in range(8)]
        time.sleep(0.1)
        end_a_replica()
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


def end_a_replica() -> None:
    """Kill the process of a replica of ours."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if command.startswith(b"ray::ServeReplica"):
            os.kill(int(folder.name), signal.SIGKILL)
            return
    raise AssertionError("there is no replica")
