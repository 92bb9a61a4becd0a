"""Models and adapters that come and go while a server answers, for those who may."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import contextmanager

import httpx
import pytest

from gptrs_runtime.load import load_model
from gptrs_serve.app import Access, new_app
from gptrs_serve.keys import Key, KeyRing
from gptrs_serve.residence import Residence
from runtime.serving_models import eventually
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_chat import save_tiny_chat
from serve.clients import held, http
from serve.conftest import serving

ASKED = {"prompt": "the", "max_tokens": 3, "temperature": 0}


def load(path):
    return load_model(path, backend="ref")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("admin")
    return {"chat": save_tiny_chat(folder / "chat"), "bert": save_tiny_bert(folder / "bert")}


@pytest.fixture
def managed(folders, monkeypatch):
    """A server with `--admin` of one model, `chat`: a client, what is served, and the engine."""

    @contextmanager
    def manage(keys=(), drain_seconds=0.3):
        made = []

        def app(served, access):
            served.residence = Residence(served, load, drain_seconds)
            made.append(served)
            return new_app(served, access)

        monkeypatch.setattr("serve.conftest.new_app", app)
        models = {"chat": load(folders["chat"])}
        with (
            serving(models, Access(keys=KeyRing(keys))) as (address, engine),
            httpx.Client(base_url=address, timeout=120) as client,
        ):
            yield client, made[0], engine

    return manage


def text_of(client, **fields):
    answer = client.post("/v1/completions", json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_models_come_and_go_and_give_their_memory_back(folders, managed):
    with managed() as (client, served, _):
        first = text_of(client, model="chat")
        told = client.post("/models/load", json={"model": f"again={folders['chat']}"})
        assert told.json() == {"success": True, "model": "again"}
        assert text_of(client, model="again") == first
        assert client.post("/models/load", json={"model": str(folders["bert"])}).status_code == 200
        asked = {"model": "bert", "input": "the cat"}
        vectors = client.post("/v1/embeddings", json=asked).json()["data"]
        names = [each["name"] for each in client.get("/api/ps").json()["models"]]
        assert names == ["chat:latest", "again:latest", "bert:latest"]
        kept = weakref.ref(served.models["again"])
        assert client.post("/models/unload", json={"model": "again"}).status_code == 200
        eventually(lambda: gc.collect() is not None and kept() is None)
        assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["chat", "bert"]
        assert client.post("/models/unload", json={"model": "bert"}).status_code == 200
        # A request brings a model back that was unloaded.
        assert client.post("/v1/embeddings", json=asked).json()["data"] == vectors
        assert text_of(client, model="again") == first


def test_requests_in_flight_end_or_are_told(folders, managed):
    with managed() as (client, _, engine):
        client.post("/models/load", json={"model": f"other={folders['chat']}"})
        slow = {**ASKED, "model": "other", "max_tokens": 90, "ignore_eos": True, "n": 4}
        found = []

        def ask():
            found.append(client.post("/v1/completions", json=slow))

        many = [threading.Thread(target=ask) for _ in range(4)]
        with held(engine):
            for each in many:
                each.start()
            eventually(lambda: engine.open_requests("other") == 4)
        assert client.post("/models/unload", json={"model": "other"}).status_code == 200
        for each in many:
            each.join(120)
        for answer in found:
            if answer.status_code != 200:
                assert answer.status_code == 503
                assert "`other` was unloaded" in answer.json()["error"]["message"]
        assert engine.open_requests("other") == 0


def test_a_model_that_goes_after_the_engine_has_the_request_answers_it(folders, managed):
    with managed() as (client, served, _):
        client.post("/models/load", json={"model": f"other={folders['chat']}"})
        first, submit, gone = text_of(client, model="other"), served.submit, []

        def leave(*asked, **fields):
            stream = submit(*asked, **fields)
            gone.append(served.remove("other"))
            return stream

        served.submit = leave
        assert text_of(client, model="other") == first
        assert len(gone) == 1


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "the"}),
        ("/v1/completions", {"prompt": "the cat", "echo": True, "logprobs": 1, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_tokens_of_a_model_never_reach_the_one_that_has_its_name_next(
    path, asked, folders, managed
):
    with managed() as (client, served, _):
        client.post("/models/load", json={"model": f"other={folders['chat']}"})
        tokens = served.tokens

        async def replaced(model, prompt):
            found = await tokens(model, prompt)
            await served.residence.unload("other")
            await served.residence.load("other")
            return found

        served.tokens = replaced
        answer = client.post(path, json={"max_tokens": 3, **asked, "model": "other"})
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["message"].startswith("the model `other` was unloaded")


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/models/load", {"model": "chat"}, 200, "chat"),
        ("/models/load", {"model": "x=/nowhere"}, 400, "/nowhere"),
        ("/models/load", {"model": "chat=/nowhere"}, 400, "called 'chat' already"),
        ("/models/load", {"model": "=x"}, 400, "[NAME=]MODEL"),
        ("/models/unload", {"model": "cat"}, 404, "no model called 'cat'"),
        ("/v1/unload_lora_adapter", {"lora_name": "chat"}, 400, "is not an adapter"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}, 400, "/nowhere"),
    ],
)
def test_what_cannot_be_done_is_said(path, body, status, told, managed):
    with managed() as (client, _, _):
        answer = client.post(path, json=body)
        assert (answer.status_code, told in answer.text) == (status, True), answer.text


def test_keep_alive_0_of_ollama_unloads_after_the_answer(managed):
    with managed(drain_seconds=30) as (client, served, _):
        body = {"model": "chat:latest", "prompt": "the", "stream": False, "raw": True}
        first = client.post("/api/generate", json={**body, "keep_alive": "0s"}).json()
        assert "response" in first
        eventually(lambda: not served.models)
        assert client.get("/api/ps").json() == {"models": []}
        (tagged,) = client.get("/api/tags").json()["models"]
        assert (tagged["name"], tagged["size"]) == ("chat", 0)
        assert {"modified_at", "digest", "details"} < tagged.keys()
        again = client.post("/api/generate", json={**body, "keep_alive": "5m"}).json()
        assert "response" in again
        assert list(served.models) == ["chat"]
        ended = client.post("/api/generate", json={"model": "chat", "keep_alive": 0}).json()
        assert ended["done_reason"] == "unload"
        assert not served.models


def test_a_server_without_admin_keeps_its_models(model):
    with serving({"tiny": model}) as (address, _):
        answer = http.post(f"{address}/models/unload", json={"model": "tiny"})
        assert answer.status_code == 403
        assert "--admin" in answer.text
        asked = {"model": "tiny", "prompt": "", "keep_alive": 0}
        answer = http.post(f"{address}/api/generate", json=asked)
        assert answer.json()["done_reason"] == "load"


def test_only_a_key_that_may_changes_the_models(managed):
    keys = [Key("user"), Key("boss", is_admin=True)]
    with managed(keys) as (client, served, _):
        for key, status in (("user", 403), ("boss", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            answer = client.post("/models/unload", json={"model": "chat"}, headers=headers)
            assert answer.status_code == status
            assert bool(served.models) == (status != 200)
