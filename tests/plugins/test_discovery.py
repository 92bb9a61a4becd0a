"""Whatever a plugin does when it is read, it is listed, and the others are not affected."""

from __future__ import annotations

import logging
import sys

import pytest

from gptrs.api import BackendPlugin, ModelPlugin, PluginError
from gptrs.plugins.manager import PluginManager, configure
from gptrs.plugins.state import PluginRecord, PluginState

BACKENDS = "gptrs.backends"
DESCRIPTION = """
from gptrs.api import BackendPlugin
P = BackendPlugin(name="{name}", summary="s", priority=1, factory="nowhere:create", api="{api}")
"""


def described(name: str, api: str = "0.1") -> str:
    return DESCRIPTION.format(name=name, api=api)


def by_name(manager: PluginManager) -> dict[str, PluginRecord]:
    return {record.name: record for record in manager.records()}


def test_an_available_plugin_has_a_complete_record(install):
    install("Some_Dist", {BACKENDS: {"good": "good_plugin:P"}}, {"good_plugin": described("good")})
    assert configure().records() == [
        PluginRecord(
            name="good",
            kind="backend",
            distribution="Some_Dist",
            version="1.0",
            api="0.1",
            state=PluginState.AVAILABLE,
            reason=None,
            hint=None,
            entry_point="good_plugin:P",
            summary="s",
        )
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise ImportError('lib.so:\\n  not found')", "ImportError: lib.so: not found"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Odd(BaseException): pass\nraise Odd", "Odd"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("raise ValueError('x' * 1000)", f"ValueError: {'x' * 297}..."),
        ("class E(Exception):\n  __str__ = None\nraise E", "E: (its message cannot be shown)"),
        ("", "AttributeError: module 'bad_plugin' has no attribute 'P'"),
        ("P = {}", "`bad_plugin:P` must be a `BackendPlugin`, it is a `dict`"),
        (
            "from gptrs.api import ModelPlugin\n"
            "P = ModelPlugin(name='bad', summary='s', factory='a:b', api='0.1')",
            "`bad_plugin:P` must be a `BackendPlugin`, it is a `ModelPlugin`",
        ),
        (
            described("other"),
            "the entry point `bad` names a plugin that calls itself `other`",
        ),
        (
            "from gptrs.api import BackendPlugin\n"
            "P = BackendPlugin(name='bad', summary='s', priority=1, factory='oops', api='0.1')",
            "`BackendPlugin.factory` must be \"module:callable\", got 'oops'",
        ),
    ],
)
def test_a_plugin_that_cannot_be_read_is_broken_and_stops_nothing(install, source, reason):
    install("bad-dist", {BACKENDS: {"bad": "bad_plugin:P"}}, {"bad_plugin": source})
    install("z-dist", {BACKENDS: {"good": "good_plugin:P"}}, {"good_plugin": described("good")})
    records = by_name(configure())
    assert records["good"].state == "available"
    assert records["bad"].state == "broken"
    assert records["bad"].reason.startswith(reason)
    assert "\n" not in records["bad"].reason
    assert "`GPTRS_DISABLE_PLUGINS=bad`" in records["bad"].hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("import no_such_library.part", "install the module `no_such_library`"),
        ("import bad_plugin.part", "update or reinstall `bad-dist`"),
        ("raise ImportError('x')", "update or reinstall `bad-dist`"),
    ],
)
def test_the_hint_names_what_is_missing(install, source, hint):
    install("bad-dist", {BACKENDS: {"bad": "bad_plugin:P"}}, {"bad_plugin": source})
    assert by_name(configure())["bad"].hint.startswith(hint)


def test_an_interrupt_while_plugins_are_read_is_passed_on_and_the_next_try_starts_over(
    install, monkeypatch
):
    source = f"import sys\nif sys.flags_for_test: raise KeyboardInterrupt\n{described('slow')}"
    install("dist", {BACKENDS: {"slow": "slow_plugin:P"}}, {"slow_plugin": source})
    manager = configure()
    monkeypatch.setattr(sys, "flags_for_test", True, raising=False)
    with pytest.raises(KeyboardInterrupt):
        manager.records()
    monkeypatch.setattr(sys, "flags_for_test", False)
    assert by_name(manager)["slow"].state == "available"
    assert [d.name for d in manager.descriptions(BackendPlugin)] == ["slow"]


def test_a_description_may_be_computed_by_a_hook(install):
    hook = """
from gptrs.api import BackendPlugin, hookimpl
@hookimpl
def gptrs_describe():
    return BackendPlugin(name="x", summary="2 devices", priority=1, factory="a:b", api="0.1")
"""
    install("dist", {BACKENDS: {"x": "hook_plugin"}}, {"hook_plugin": hook})
    install("dist2", {BACKENDS: {"y": "plain"}}, {"plain": hook.replace("@hookimpl", "")})
    records = by_name(configure())
    assert (records["x"].state, records["x"].summary) == ("available", "2 devices")
    assert records["y"].reason == "`plain` must be a `BackendPlugin`, it is a `module`"


def test_another_api_version_is_incompatible(install):
    install("dist", {BACKENDS: {"new": "new:P"}}, {"new": described("new", "9.0")})
    manager = configure()
    (record,) = manager.records()
    assert (record.state, record.api) == ("incompatible", "9.0")
    assert record.reason == "written for plugin API 9.0, this gptrs has 0.1"
    assert "`dist`" in record.hint
    assert manager.descriptions(BackendPlugin) == []
    with pytest.raises(PluginError, match=r"backend `new` .* is incompatible: written for"):
        manager.find(BackendPlugin, "new")


def test_kinds_have_names_of_their_own(install):
    model = "from gptrs.api import ModelPlugin\n" + (
        "P = ModelPlugin(name='x', summary='s', factory='a:b', api='0.1')"
    )
    install("a", {BACKENDS: {"x": "backend_x:P"}}, {"backend_x": described("x")})
    install("b", {"gptrs.models": {"x": "model_x:P"}}, {"model_x": model})
    manager = configure()
    assert [(r.kind, r.state) for r in manager.records()] == [
        ("backend", "available"),
        ("model", "available"),
    ]
    assert [r.distribution for r in manager.records(ModelPlugin)] == ["b"]


@pytest.mark.parametrize("selector", ["x", "backend:x", "some-dist"])
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_disabled_plugin_is_not_imported(install, monkeypatch, selector, by):
    install("Some.Dist", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    install("other", {BACKENDS: {"y": "y_plugin:P"}}, {"y_plugin": described("y")})
    if by == "variable":
        monkeypatch.setenv("GPTRS_DISABLE_PLUGINS", f" {selector} ,")
    manager = configure([selector] if by == "argument" else [])
    record = by_name(manager)["x"]
    assert (record.state, record.reason) == ("disabled", f"disabled as `{selector}`")
    assert by_name(manager)["y"].state == "available"
    assert "x_plugin" not in sys.modules
    with pytest.raises(PluginError, match=r"backend `x` .* is disabled: disabled as") as caught:
        manager.find(BackendPlugin, "x")
    assert caught.value.exit_code == 4


def test_an_allow_list_leaves_out_the_rest(install, monkeypatch):
    install("a", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    install("b", {BACKENDS: {"y": "y_plugin:P"}}, {"y_plugin": described("y")})
    monkeypatch.setenv("GPTRS_PLUGINS", "b")
    records = by_name(configure())
    assert records["x"].reason == "not in the list `GPTRS_PLUGINS`"
    assert [records["x"].state, records["y"].state] == ["disabled", "available"]
    assert by_name(configure(["y"]))["y"].state == "disabled"
    monkeypatch.setenv("GPTRS_PLUGINS", "")
    assert by_name(configure())["x"].state == "available"


def test_a_selector_that_fits_nothing_is_said_once(install, monkeypatch, caplog):
    install("a", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    monkeypatch.setenv("GPTRS_PLUGINS", "x,a,backend:x,y")
    manager = configure(disabled=["zz"])
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        manager.records()
        manager.records()
    assert [record.getMessage() for record in caplog.records] == [
        "no plugin or distribution is called `y`, the name selects nothing",
        "no plugin or distribution is called `zz`, the name selects nothing",
    ]


def test_a_damaged_entry_points_file_is_listed(install):
    install("damaged", "[gptrs.backends]\nthis is no entry point")
    install("good", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    records = by_name(configure())
    assert records["x"].state == "available"
    assert (records["damaged"].state, records["damaged"].kind) == ("broken", "distribution")
    assert records["damaged"].reason.startswith("its entry_points.txt cannot be read: ")


def test_a_distribution_without_metadata_is_listed(install, tmp_path):
    install("dist", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    (tmp_path / "dist-1.0.dist-info" / "METADATA").unlink()
    (record,) = configure().records()
    assert (record.state, record.distribution) == ("available", "dist")


def test_other_groups_are_none_of_our_business(install):
    install("dist", {group: {"x": "boom:P"} for group in ("console_scripts", "gptrs_cool.x")})
    assert configure().records() == []


def test_a_plugin_that_looks_for_plugins_while_it_is_read_sees_none(install):
    source = "from gptrs.plugins.manager import manager\n"
    source += "assert manager().records() == []\n" + described("x")
    install("dist", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": source})
    assert [record.state for record in configure().records()] == ["available"]


@pytest.mark.parametrize("source", ["raise ImportError('no')", described("x", "9.0")])
def test_strict_turns_a_problem_into_an_error_each_time(install, monkeypatch, source):
    install("dist", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": source})
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    manager = configure()
    for _ in range(2):
        with pytest.raises(PluginError, match=r"backend `x` .*from dist 1.0"):
            manager.records()
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "0")
    assert len(configure().records()) == 1


def test_strict_refuses_duplicates_and_names_that_select_nothing(install, monkeypatch):
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    install("a", {BACKENDS: {"x": "x_plugin:P"}}, {"x_plugin": described("x")})
    assert [record.state for record in configure().records()] == ["available"]
    assert configure(disabled=["x"]).records()[0].state == "disabled"
    with pytest.raises(PluginError, match="no plugin or distribution is called `zz`"):
        configure(disabled=["zz"]).records()
    install("b", {BACKENDS: {"x": "x_plugin:P"}})
    with pytest.raises(PluginError, match=r"`x` .*from a 1.0.* is duplicate: `b` registers"):
        configure().records()
