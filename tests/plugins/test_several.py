"""One entry point may yield several plugins: they have names, rivals and states of their own."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from gptrs.api import ModelPlugin
from gptrs.errors import ModelError, PluginError
from gptrs.plugins.manager import configure
from gptrs_cli.plugin_check.children import check_plugins

MODELS = "gptrs.models"
MANY = """
from gptrs.api import ModelPlugin

def kind(name):
    return ModelPlugin(name=name, summary="of " + name, factory="no_such:make", api="0.1")

KINDS = [kind("one"), kind("two")]

def made():
    yield from KINDS
"""
SINGLE = """
from gptrs.api import ModelPlugin
P = ModelPlugin(name="two", summary="s", factory="no_such:make", api="0.1")
"""


def install_many(install, distribution="many-dist", value="many:KINDS"):
    install(distribution, {MODELS: {"*": value}}, {"many": MANY})


@pytest.mark.parametrize("value", ["many:KINDS", "many:made"])
def test_each_has_a_record_of_its_own(install, value):
    install_many(install, value=value)
    one, two = configure().records()
    assert (one.name, two.name) == ("one", "two")
    assert (one.distribution, one.entry_point, one.summary) == ("many-dist", value, "of one")
    assert [record.state for record in (one, two)] == ["available", "available"]
    assert configure().find(ModelPlugin, "two").summary == "of two"


def test_other_kinds_of_plugins_do_not_import_them(install):
    install_many(install)
    plugins = configure()
    (unread,) = plugins.installed()
    assert (unread.name, unread.state) == ("*", "available")
    assert "many" not in sys.modules
    assert [record.name for record in plugins.installed(ModelPlugin)] == ["one", "two"]
    assert "many" in sys.modules


def test_one_of_them_may_be_left_out_or_alone_allowed(install, monkeypatch, caplog):
    install_many(install)
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        plugins = configure(disabled=["one"])
        assert [record.state for record in plugins.records()] == ["disabled", "available"]
        monkeypatch.setenv("GPTRS_PLUGINS", "many-dist:one")
        assert [record.state for record in configure().records()] == ["available", "disabled"]
    assert caplog.records == []  # the names of the selection are known ones


def test_a_package_that_is_left_out_is_not_imported(install):
    install_many(install)
    plugins = configure(disabled=["many-dist"])
    assert [record.state for record in plugins.records()] == ["disabled"]
    assert "many" not in sys.modules
    with pytest.raises(PluginError, match="disabled as `many-dist`"):
        plugins.find(ModelPlugin, "two")


def test_a_name_that_another_package_has_is_contested(install):
    install_many(install)
    install("single", {MODELS: {"two": "single_kind:P"}}, {"single_kind": SINGLE})
    plugins = configure()
    assert [(r.name, r.distribution, r.state) for r in plugins.records()] == [
        ("one", "many-dist", "available"),
        ("two", "many-dist", "duplicate"),
        ("two", "single", "duplicate"),
    ]
    with pytest.raises(PluginError, match="`many-dist:two` and `single:two`"):
        plugins.find(ModelPlugin, "two")
    assert plugins.find(ModelPlugin, "many-dist:two").summary == "of two"


def test_names_of_gptrs_stay_its_own(install):
    install_many(install, "gptrs-models")
    install("single", {MODELS: {"two": "single_kind:P"}}, {"single_kind": SINGLE})
    plugins = configure()
    assert plugins.find(ModelPlugin, "two").summary == "of two"
    assert plugins.records()[2].reason == "the model kind of this name is that of `gptrs-models`"
    disabled = configure(disabled=["gptrs-models"])
    assert [r.state for r in disabled.records()] == ["disabled", "disabled", "available"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("KINDS = 3", "`bad:KINDS` must give several descriptions, it gives a `int`"),
        ("KINDS = [3]", "`bad:KINDS` must give a `ModelPlugin` each, one is a `int`"),
        (MANY + "KINDS += KINDS", "`bad:KINDS` gives two descriptions called `one`"),
        (MANY + "KINDS *= 501", "`bad:KINDS` gives more than 1000 descriptions"),
        ("def KINDS():\n  raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_read_is_broken_and_stops_nothing(install, source, reason):
    install("bad-dist", {MODELS: {"*": "bad:KINDS"}}, {"bad": source})
    install_many(install)
    plugins = configure()
    broken, *others = plugins.records()
    assert (broken.name, broken.distribution, broken.state) == ("*", "bad-dist", "broken")
    assert broken.reason == reason
    assert [record.name for record in others] == ["one", "two"]
    assert plugins.find(ModelPlugin, "one").name == "one"
    with pytest.raises(PluginError, match=r"model kind `\*` \(from bad-dist 1.0\) is broken"):
        plugins.find(ModelPlugin, "three")


def test_an_unknown_name_is_unknown(install):
    install_many(install)
    with pytest.raises(ModelError, match="there is no model kind `three`"):
        configure().find(ModelPlugin, "three", unknown=ModelError)


def test_a_strict_selection_raises_for_a_broken_one(install, monkeypatch):
    install("bad-dist", {MODELS: {"*": "bad:KINDS"}}, {"bad": "KINDS = 3"})
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    with pytest.raises(PluginError, match="must give several descriptions"):
        configure().records()


def test_a_child_process_checks_them(install, tmp_path, monkeypatch):
    install_many(install)
    install("bad-dist", {MODELS: {"*": "bad:KINDS"}}, {"bad": "import os; os._exit(3)"})
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    plugins = configure()
    check_plugins(plugins)
    found = {record.distribution: record for record in plugins.installed()}
    assert found["many-dist"].state == "available"
    assert found["bad-dist"].state == "broken"
    assert "bad" not in sys.modules
