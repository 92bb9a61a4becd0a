"""A server on a port of its own, with a tiny model that chats, and the client of OpenAI."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.connections import http_protocol
from gptrs_serve.served import WRITING, Served
from gptrs_serve.watched_runs import Interventions
from runtime.serving_models import eventually
from runtime.tiny_chat import save_tiny_chat
from serve.talkers import talkers


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(save_tiny_chat(tmp_path_factory.mktemp("serve") / "tiny"), backend="ref")


@contextmanager
def serving(
    models, access=None, most_output=100, drain_seconds=None, presets=None, **engine
) -> Iterator[tuple[str, Any]]:
    """Serve on a free port; the address, and the engine. With `presets`, interventions are on."""
    writers = {name: m for name, m in models.items() if not m.capabilities.isdisjoint(WRITING)}
    made = Engine(writers, **engine) if writers else None
    served = Served(models, made, most_output)
    if presets is not None:
        served.interventions = Interventions(served.ledger, presets)
    app = new_app(served, access or Access())
    config = uvicorn.Config(
        app,
        port=0,
        log_level="warning",
        ws="none",
        http=http_protocol(),
        timeout_graceful_shutdown=drain_seconds,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", made
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """A server of models that say what is known beforehand, and these."""
    models = talkers(tmp_path_factory.mktemp("talkers"))
    with serving(models, most_output=None) as (address, _):
        yield address, models


@pytest.fixture(scope="session")
def address(model) -> Iterator[str]:
    with serving({"tiny": model}) as (address, _):
        yield address
