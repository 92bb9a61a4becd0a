"""Two packages with one name: gptrs keeps its own and says so, strangers have to be told apart."""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

import gptrs
from gptrs.api import BackendPlugin, DemoModelPlugin, ModelPlugin, PluginError, UsageError
from gptrs.functionals.dispatch.registry import find_implementation
from gptrs.plugins.functionals import PluginImplementations
from gptrs.plugins.manager import configure, origin_of
from gptrs.plugins.selection import OWN

BACKENDS, MODELS = "gptrs.backends", "gptrs.models"
BACKEND = """
from gptrs.api import BackendPlugin
from gptrs.api.backends import Backend
P = BackendPlugin(name="x", summary="s", priority=1, factory="{module}:create", api="0.1")
class Made(Backend):
    name = "x"
    refusal = compile = to_device = to_host = None
    made_by = "{module}"
def create(threads):
    return Made()
"""
MODEL = """
from gptrs.api import ModelPlugin
P = ModelPlugin(name="gpt2", summary="s", factory="{module}:make", api="0.1")
def make(config, params):
    return "{module}"
"""
FUNCTIONAL = """
from gptrs.api import FunctionalPlugin
P = FunctionalPlugin(
    name="{name}", functional="gelu", summary="s", factory="{module}:make", api="0.1"
)
def make(x):
    return x
"""


def maker(backend: object) -> object:
    """Return the module that made a backend of these tests."""
    return vars(type(backend))["made_by"]


@pytest.fixture
def shadowed(install):
    """A backend of gptrs, and a stranger's of the same name that comes first in the alphabet."""
    install(
        "aaa-shadow", {BACKENDS: {"x": "theirs:P"}}, {"theirs": BACKEND.format(module="theirs")}
    )
    own = BACKEND.format(module="ours")
    install("gptrs-backend-numba", {BACKENDS: {"x": "ours:P"}}, {"ours": own})


@pytest.fixture
def strangers_of_one_name(install):
    for name in ("a", "b"):
        source = BACKEND.format(module=f"made_by_{name}")
        install(f"{name}-dist", {BACKENDS: {"x": f"made_by_{name}:P"}}, {f"made_by_{name}": source})


def test_all_distributions_of_this_repository_are_ours():
    root = Path(__file__).parents[2] / "packages"
    projects = [tomllib.loads(path.read_text("utf-8")) for path in root.glob("*/pyproject.toml")]
    names = {project["project"]["name"] for project in projects}
    assert names - {"gptrs"} <= OWN


def test_gptrs_keeps_its_names_and_warns_when_one_is_used(shadowed, caplog):
    plugins = configure()
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert [record.distribution for record in plugins.records()] == [
            "gptrs-backend-numba",
            "aaa-shadow",
        ]
        assert not caplog.records  # nothing is used yet
        for _ in range(2):
            assert maker(plugins.get_backend("x")) == "ours"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "backend `x` (from gptrs-backend-numba 1.0) is used, not `aaa-shadow:x`,"
        " which has the same name"
    )
    assert "theirs" not in sys.modules
    assert maker(plugins.get_backend()) == "ours"
    shadow = plugins.records()[1]
    assert (shadow.state, shadow.reason) == (
        "duplicate",
        "the backend of this name is that of `gptrs-backend-numba`",
    )


def test_a_name_with_its_distribution_chooses(shadowed, caplog, monkeypatch):
    plugins = configure()
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        theirs = plugins.get_backend("aaa-shadow:x")
        assert maker(theirs) == "theirs"
        assert plugins.get_backend("AAA_Shadow:x") is theirs
    assert not caplog.records
    assert plugins.get_backend("gptrs-backend-numba:x") is plugins.get_backend("x")
    assert origin_of(theirs) == "backend `x` (from aaa-shadow 1.0)"
    assert [plugin.name for plugin in plugins.descriptions(BackendPlugin)] == ["x"]
    monkeypatch.setenv("GPTRS_BACKEND", "aaa-shadow:x")
    assert maker(configure().get_backend()) == "theirs"
    with pytest.raises(PluginError, match="there is no backend `no-dist:x`"):
        plugins.get_backend("no-dist:x")


def test_a_plugin_of_gptrs_can_be_left_out_for_another_one(shadowed):
    plugins = configure(disabled=["gptrs-backend-numba:x"])
    assert maker(plugins.get_backend("x")) == "theirs"
    assert [record.state for record in plugins.records()] == ["disabled", "loaded"]


def test_strict_refuses_a_contested_name(shadowed, monkeypatch):
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    with pytest.raises(PluginError, match=r"`x` \(from aaa-shadow 1.0\) is duplicate"):
        configure().get_backend("x")


def test_of_strangers_none_has_a_name_that_several_want(strangers_of_one_name, caplog):
    plugins = configure()
    with pytest.raises(PluginError) as caught:
        plugins.get_backend("x")
    assert str(caught.value) == (
        "the backend `x` comes from several packages: `a-dist:x` and `b-dist:x`;"
        " name one of them in full, or leave one out: `-p no:a-dist:x`"
    )
    assert caught.value.exit_code == 4
    assert [record.state for record in plugins.records()] == ["duplicate", "duplicate"]
    assert not {"made_by_a", "made_by_b"} & sys.modules.keys()
    assert maker(plugins.get_backend("b-dist:x")) == "made_by_b"
    assert maker(configure(disabled=["b-dist:x"]).get_backend("x")) == "made_by_a"
    with (
        caplog.at_level(logging.WARNING, logger="gptrs"),
        pytest.raises(PluginError, match="no backend is available"),
    ):
        configure().get_backend()
    assert [record.getMessage() for record in caplog.records] == [
        "backend `x` is skipped: `b-dist` registers a backend of this name, too"
    ]


def test_a_kind_of_model_of_a_stranger_does_not_replace_ours(install, caplog):
    for name, module in (("aaa-shadow", "theirs"), ("gptrs-models", "ours")):
        install(name, {MODELS: {"gpt2": f"{module}:P"}}, {module: MODEL.format(module=module)})
    plugins = configure()
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert plugins.model_factory("gpt2")({}, None) == "ours"
    assert "not `aaa-shadow:gpt2`" in caplog.text
    assert plugins.record(ModelPlugin, "gpt2").distribution == "gptrs-models"
    chosen = configure(disabled=["gptrs-models:gpt2"])
    assert chosen.model_factory("gpt2")({}, None) == "theirs"
    assert chosen.record(ModelPlugin, "gpt2").distribution == "aaa-shadow"


def test_the_first_bundled_model_is_one_of_gptrs(install, tmp_path):
    source = """
from gptrs.api import DemoModelPlugin
P = DemoModelPlugin(name="{name}", summary="s", path="{module}:.", api="0.1")
"""
    for name, module, distribution in (("a", "theirs", "aaa"), ("demo", "ours", "gptrs-models")):
        plugin = source.format(name=name, module=module)
        install(
            distribution,
            {"gptrs.demo_models": {name: f"{module}_demo:P"}},
            {f"{module}_demo": plugin},
        )
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("", encoding="utf-8")
    plugins = configure()
    assert [record.name for record in plugins.records(DemoModelPlugin)] == ["a", "demo"]
    assert plugins.demo_model_path() == tmp_path / "ours"
    for module in ("ours", "theirs"):
        sys.modules.pop(module, None)


def test_an_implementation_that_two_plugins_have_is_an_error(install):
    for name, module in (("gelu.fast", "one"), ("fast", "two")):
        source = FUNCTIONAL.format(name=name, module=module)
        install(f"{module}-dist", {"gptrs.functionals": {name: f"{module}:P"}}, {module: source})
    configure()
    with pytest.raises(
        PluginError, match=r"several plugins implement `gelu` as `fast`: .*two-dist.*one-"
    ):
        find_implementation("gelu", "fast")
    configure(disabled=["one-dist:gelu.fast"])
    assert PluginImplementations().load("gelu", "fast") is not None


def test_an_implementation_of_two_packages_under_one_name_is_an_error(install):
    for module in ("one", "two"):
        source = FUNCTIONAL.format(name="gelu.fast", module=module)
        install(
            f"{module}-dist", {"gptrs.functionals": {"gelu.fast": f"{module}:P"}}, {module: source}
        )
    configure()
    with pytest.raises(PluginError, match=r"`gelu.fast` comes from several packages: `one-dist"):
        find_implementation("gelu", "fast")
    chosen = find_implementation("gelu", "two-dist:fast")
    assert (chosen.name, chosen.function.__module__) == ("two-dist:fast", "two")
    with gptrs.overrides({"gelu": "prefer=one_dist:fast"}):
        made = cast("Any", gptrs.functionals.gelu(gptrs.tensor([3.0])).source)
    assert made.node.op.kind == "gelu.v1/one_dist:fast"
    with pytest.raises(UsageError, match="functional `gelu` has no implementation `x-dist:fast`"):
        find_implementation("gelu", "x-dist:fast")


def test_an_implementation_does_not_end_the_program(install):
    source = FUNCTIONAL.format(name="gelu.fast", module="one").replace(
        "return x", "raise SystemExit(0)"
    )
    install("one-dist", {"gptrs.functionals": {"gelu.fast": "one:P"}}, {"one": source})
    configure()
    with pytest.raises(PluginError, match=r"`gelu.fast` \(from one-dist 1.0\) failed in its impl"):
        find_implementation("gelu", "fast").function(1)


def test_an_interrupt_at_import_names_the_plugin(install):
    install("dist", {BACKENDS: {"x": "slow:P"}}, {"slow": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt) as caught:
        configure().records()
    assert caught.value.__notes__ == ["while backend `x` (from dist 1.0) was imported"]
