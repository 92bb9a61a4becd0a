"""What a plugin may say about itself, and which API versions fit."""

from __future__ import annotations

from typing import Any

import pytest

from gptrs.api import (
    BackendPlugin,
    CommandPlugin,
    DemoModelPlugin,
    FunctionalPlugin,
    ModelPlugin,
    PluginError,
)
from gptrs.plugins import descriptions
from gptrs.plugins.descriptions import is_compatible

GOOD: dict[str, Any] = {"name": "x", "summary": "a plugin", "api": "0.1", "factory": "a.b:c"}


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        ("0.1", "0.1", True),
        ("0.1", "0.2", False),
        ("0.2", "0.1", False),
        ("0.1", "1.1", False),
        ("1.4", "1.4", True),
        ("1.4", "1.0", True),
        ("1.4", "1.10", False),
        ("1.10", "1.4", True),
        ("1.4", "0.4", False),
        ("2.0", "1.9", False),
        ("0.2", ">=0.1,<0.3", True),
        ("0.1", ">=0.1,<0.3", True),
        ("0.3", ">= 0.1, < 0.3", False),
        ("1.0", ">=0.1,<2.0", True),
        ("0.10", ">=0.9,<0.11", True),
        ("0.1", ">=0.2,<0.3", False),
    ],
)
def test_api_versions_that_fit(ours: str, theirs: str, fits: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(descriptions, "API_VERSION", ours)
    assert is_compatible(theirs) is fits


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (BackendPlugin, {"priority": -3}),
        (ModelPlugin, {}),
        (CommandPlugin, {"name": "bench-all", "factory": "a:b.c"}),
        (FunctionalPlugin, {"functional": "layer_norm"}),
    ],
)
def test_well_formed(cls: Any, fields: dict[str, Any]):
    plugin = cls(**{**GOOD, **fields})
    assert plugin.summary == "a plugin"
    with pytest.raises(AttributeError):
        plugin.name = "y"


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (ModelPlugin, {"name": ""}, r"`ModelPlugin.name` must be letters, .*, got ''"),
        (ModelPlugin, {"name": "a b"}, r"`ModelPlugin.name`"),
        (ModelPlugin, {"name": 3}, r"`ModelPlugin.name` .*, got 3"),
        (ModelPlugin, {"summary": "two\nlines"}, r"`ModelPlugin.summary` must be one line"),
        (ModelPlugin, {"api": "1"}, r"`ModelPlugin.api` must be a version"),
        (ModelPlugin, {"api": ">=0.1"}, r"got \'>=0.1\'"),
        (ModelPlugin, {"api": ">=0.3,<0.3"}, r"must be a range with a version in it"),
        (ModelPlugin, {"api": 0.1}, r"`ModelPlugin.api` must be a version"),
        (ModelPlugin, {"factory": "a.b"}, r'`ModelPlugin.factory` must be "module:callable"'),
        (ModelPlugin, {"factory": "a-b:c"}, r"`ModelPlugin.factory`"),
        (ModelPlugin, {"factory": print}, r"`ModelPlugin.factory`"),
        (ModelPlugin, {"tokenizer": 3}, r"`ModelPlugin.tokenizer` must be the name of a class"),
        (BackendPlugin, {"priority": "10"}, r"`BackendPlugin.priority` must be an integer"),
        (BackendPlugin, {"priority": True}, r"`BackendPlugin.priority` must be an integer"),
        (FunctionalPlugin, {"functional": ""}, r"`FunctionalPlugin.functional`"),
    ],
)
def test_malformed_fields_are_named(cls: Any, fields: dict[str, Any], message: str):
    with pytest.raises(PluginError, match=message):
        cls(**{**GOOD, **fields})


@pytest.mark.parametrize("path", ["gptrs_models:demo", "a.b:c/d..e/f", "a:.hidden"])
def test_demo_model_paths(path: str):
    assert DemoModelPlugin(name="x", summary="s", api="0.1", path=path).path == path


@pytest.mark.parametrize(
    "path",
    ["a", "a:", ":b", "a:/etc", "a:../b", "a:b/../c", "a:b/..", "a:..", "a:b\\..\\c", "a-b:c", 3],
)
def test_demo_model_paths_stay_inside_their_package(path: Any):
    with pytest.raises(PluginError, match=r"`DemoModelPlugin\.path` must be"):
        DemoModelPlugin(name="x", summary="s", api="0.1", path=path)
