"""Model kinds, demo models and commands by name; one manager a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gptrs.api import CommandPlugin, DemoModelPlugin, ModelError, PluginError
from gptrs.plugins.manager import configure, manager

MODELS = """
from gptrs.api import ModelPlugin
def make(config, params):
    return config, params
LLAMA = ModelPlugin(name="llama", summary="s", factory="models_x:make", api="0.1")
PHI = ModelPlugin(name="phi", summary="s", factory="models_x:gone", api="0.1")
"""
DEMOS = """
from gptrs.api import DemoModelPlugin
B = DemoModelPlugin(name="b", summary="s", path="{package}:sub/dir", api="0.1")
A = DemoModelPlugin(name="a", summary="s", path="{package}:other", api="0.1")
"""


@pytest.fixture
def models(install):
    entries = {"llama": "models_x:LLAMA", "phi": "models_x:PHI"}
    install("models-dist", {"gptrs.models": entries}, {"models_x": MODELS})
    return configure()


def test_a_model_kind_is_found_and_its_factory_imported_on_use(models):
    assert models.model_plugin("llama").factory == "models_x:make"
    assert [record.state for record in models.records()] == ["available", "available"]
    assert models.model_factory("llama")({"a": 1}, None) == ({"a": 1}, None)
    assert [record.state for record in models.records()] == ["loaded", "available"]


def test_an_unknown_model_kind_lists_the_known_ones(models):
    with pytest.raises(ModelError) as caught:
        models.model_plugin("lama")
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith(
        "there is no model kind `lama`; available: `llama`, `phi`; "
    ), "config.json says it: nobody mistyped a name"
    with pytest.raises(ModelError, match="there is no model kind `bert`; available: "):
        models.model_factory("bert")


def test_a_model_kind_whose_factory_is_missing_is_broken(models):
    with pytest.raises(PluginError, match=r"model kind `phi` .* has no attribute 'gone'") as caught:
        models.model_factory("phi")
    assert caught.value.exit_code == 4
    assert [record.state for record in models.records()] == ["available", "broken"]
    with pytest.raises(PluginError, match="has no attribute 'gone'"):
        models.model_plugin("phi")


@pytest.fixture
def demos(install, tmp_path: Path):
    package = "package_of_demos"
    for folder in ("sub/dir", "elsewhere"):
        (tmp_path / package / folder).mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text("", encoding="utf-8")
    entries = {"a": "demos_x:A", "b": "demos_x:B"}
    source = DEMOS.format(package=package)
    install("demos-dist", {"gptrs.demo_models": entries}, {"demos_x": source})
    yield tmp_path / package
    sys.modules.pop(package, None)


def test_a_demo_model_is_a_directory_of_its_package(demos: Path):
    assert configure().demo_model_path("b") == demos / "sub" / "dir"


def test_the_default_demo_model_is_the_first_by_name(demos: Path):
    (demos / "other").mkdir()
    assert configure().demo_model_path() == demos / "other"


def test_a_demo_model_without_its_directory_is_broken(demos: Path):
    plugins = configure()
    with pytest.raises(
        PluginError, match=r"demo model `a` .*`package_of_demos:other` is not a dir"
    ):
        plugins.demo_model_path("a")
    assert [r.state for r in plugins.records(DemoModelPlugin)] == ["broken", "available"]


def test_without_a_demo_model_the_error_says_what_to_install(install):
    with pytest.raises(PluginError, match=r"no demo model is installed; .*gptrs-models`"):
        configure().demo_model_path()


def test_a_command_is_a_function_to_call(install):
    source = """
from gptrs.api import CommandPlugin
def run():
    return "ran"
C = CommandPlugin(name="extra", summary="s", factory="command_x:run", api="0.1")
"""
    install("command-dist", {"gptrs.commands": {"extra": "command_x:C"}}, {"command_x": source})
    plugins = configure()
    assert [command.name for command in plugins.descriptions(CommandPlugin)] == ["extra"]
    assert plugins.factory(CommandPlugin, "extra")() == "ran"


def test_the_process_has_one_manager_until_it_is_configured_anew(install):
    first = manager()
    assert manager() is first
    assert configure(["x"]) is manager() is not first
    assert manager().selection.disabled == {"x"}


def test_a_disabled_demo_model_is_not_called_missing(demos: Path):
    with pytest.raises(PluginError, match=r"demo model `a` .*is disabled"):
        configure(disabled=["a", "b"]).demo_model_path()
