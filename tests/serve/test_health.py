"""Health and readiness, as an operator's machinery asks for them, and the client of a request."""

from __future__ import annotations

import pytest

from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.served import Served
from runtime.serving_models import eventually

testclient = pytest.importorskip("starlette.testclient", reason="httpx is not installed")


def test_health_is_that_of_the_engine(model, caplog):
    def fault():
        raise MemoryError("simulated")

    with Engine({"tiny": model}) as engine:
        client = testclient.TestClient(new_app(Served({"tiny": model}, engine, 8), Access()))
        assert client.get("/health").status_code == 200
        assert client.get("/ready").json() == {"status": "ready"}
        engine._loop.call(fault)
        eventually(lambda: engine.fault is not None)
        health = client.get("/health")
        assert health.status_code == 503
        assert "the engine has stopped after a MemoryError" in health.text
        assert client.get("/ready").status_code == 503
    assert "the engine has stopped" in caplog.text


def test_a_server_whose_engine_drains_is_alive_and_not_ready(model):
    with Engine({"tiny": model}) as engine:
        client = testclient.TestClient(new_app(Served({"tiny": model}, engine, 8), Access()))
        engine.refuse()
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503


def test_an_engine_that_was_closed_has_no_fault(model):
    engine = Engine(model)
    engine.close()
    assert engine.fault is None


@pytest.mark.parametrize(("keys", "client"), [((), "testclient"), (("one",), "one")])
def test_a_client_is_its_key_or_its_address(model, keys, client):
    clients = []

    class Noting(Served):
        def submit(self, *args, client, **named):
            clients.append(client.name)
            return super().submit(*args, client=client, **named)

    with Engine({"tiny": model}) as engine:
        app = new_app(Noting({"tiny": model}, engine, 8), Access(keys=keys))
        for path, body in (
            ("/v1/completions", {"prompt": "the cat"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ):
            answer = testclient.TestClient(app).post(
                path, json={**body, "max_tokens": 1}, headers={"Authorization": "Bearer one"}
            )
            assert answer.status_code == 200, answer.text
    assert clients == [client, client]
