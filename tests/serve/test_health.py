"""Health and readiness: what an operator's machinery asks."""

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
        engine._loop.call(fault)
        eventually(lambda: engine.fault is not None)
        health = client.get("/health")
        assert health.status_code == 503
        assert "the engine has stopped after a MemoryError" in health.text
    assert "the engine has stopped" in caplog.text


def test_an_engine_that_was_closed_has_no_fault(model):
    engine = Engine(model)
    engine.close()
    assert engine.fault is None
