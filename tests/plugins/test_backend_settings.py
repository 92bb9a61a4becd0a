"""Settings of backends: who is given them, what is refused, what is said to be ignored."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gptrs.api import BackendPlugin
from gptrs.api.backends import BackendSettings
from gptrs.backend.settings import parsed_options
from gptrs.errors import PluginError, UsageError
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection
from gptrs_backend_ref.backend import RefBackend


def test_a_backend_without_settings_refuses_them() -> None:
    manager = PluginManager(Selection())
    with pytest.raises(UsageError, match="`ref` takes no device, got `cpu`") as caught:
        manager.get_backend("ref", settings=BackendSettings(device="cpu"))
    assert "gptrs list backends" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="`ref` takes no options, got `a=1`"):
        manager.get_backend("ref", settings=BackendSettings(options=(("a", "1"),)))
    assert manager.get_backend("ref").devices() == ()


def test_settings_reach_the_factory(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    made: list[BackendSettings] = []
    manager = PluginManager(Selection())

    class Choosing(RefBackend):
        ignored = ("threads do not count",)

        def __init__(self, settings: BackendSettings) -> None:
            super().__init__()
            made.append(settings)

    description = BackendPlugin(
        name="ref", summary="s", api="0.1", factory="a:b", priority=1, takes=("device",)
    )
    monkeypatch.setattr(manager, "find", lambda *_: description)
    monkeypatch.setattr(manager, "factory", lambda *_: Choosing)
    asked = BackendSettings(device="card:1")
    with caplog.at_level(logging.WARNING):
        backend = manager.get_backend("ref", 3, asked)
        assert manager.get_backend("ref", 3, asked) is backend
        assert manager.get_backend("ref", 3, BackendSettings(device="card:2")) is not backend
    assert made == [BackendSettings(3, "card:1"), BackendSettings(3, "card:2")]
    assert caplog.text.count("threads do not count") == 1


def test_what_a_backend_takes_is_spelled_right() -> None:
    with pytest.raises(PluginError, match="takes"):
        BackendPlugin(
            name="x", summary="s", api="0.1", factory="a:b", priority=1, takes=("devise",)
        )


def test_options_are_pairs() -> None:
    assert parsed_options(["b=2", "a=x=1"]) == (("a", "x=1"), ("b", "2"))
    for bad in ("a", "=1"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parsed_options([bad])
