"""Built-in commands are plugins like a stranger's, but none can be excluded or replaced."""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
from pathlib import Path

import pytest
import typer

import gptrs_cli.commands
from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import configure, manager
from gptrs_cli.command_group import HELP_GROUPS, HELP_ORDER, command_of
from gptrs_cli.options.settings import LOADING, Settings
from gptrs_runtime.verbs import VERBS

OWN = tuple(importlib.metadata.entry_points(group="gptrs.commands"))
MOST_PARAMETERS = 12


def listed(help_text: str) -> list[str]:
    """The commands in a help, group by group."""
    titles = (*HELP_GROUPS, "Commands of plugins")
    groups = [help_text.partition(f"\n{title}:\n")[2].partition("\n\n")[0] for title in titles]
    lines = [line for group in groups for line in group.splitlines()]
    return [line.split()[0] for line in lines if line[:3].strip()]


def test_each_command_is_an_entry_point_and_has_a_module_of_its_name_or_is_a_verb():
    own = {entry.name for entry in OWN if entry.dist and entry.dist.name == "gptrs-cli"}
    assert own == set(HELP_ORDER)
    modules = {module.name for module in pkgutil.iter_modules(gptrs_cli.commands.__path__)}
    assert own == modules - {"verbs"} | VERBS.keys()
    assert modules.isdisjoint(VERBS)


def test_the_help_keeps_their_order(gptrs):
    assert listed(gptrs("--help").out)[: len(HELP_ORDER)] == list(HELP_ORDER)


@pytest.mark.parametrize("name", HELP_ORDER)
def test_the_summary_is_how_the_help_of_the_command_begins(gptrs, name):
    described = manager().find(CommandPlugin, name)
    lines = gptrs(name, "--help").out.splitlines()
    assert lines[2].strip() == described.summary


@pytest.mark.parametrize("name", HELP_ORDER)
def test_no_command_takes_many_parameters(name):
    factory = manager().factory(CommandPlugin, name)
    functions = [factory]
    if isinstance(factory, typer.Typer):
        functions = [command.callback for command in factory.registered_commands]
    for function in functions:
        assert len(inspect.signature(inspect.unwrap(function)).parameters) <= MOST_PARAMETERS


def test_the_shared_options_are_those_of_the_root():
    options = {p.name for p in command_of(manager().factory(CommandPlugin, "generate"), "g").params}
    assert options.issuperset({*Settings.__struct_fields__, *LOADING} - {"load"})


@pytest.mark.parametrize(
    "environment",
    [
        {"GPTRS_PLUGINS": "ref"},
        {"GPTRS_PLUGINS": "backend:ref", "GPTRS_PLUGIN_STRICT": "1"},
        {"GPTRS_DISABLE_PLUGINS": "gptrs-cli,list,command:generate,new,serve,batch,finetune,train"},
    ],
)
def test_no_selection_removes_them(gptrs, monkeypatch, environment, model_directory):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    configure()
    assert listed(gptrs("--help").out) == list(HELP_ORDER)
    commands = {record.name: record for record in manager().records(CommandPlugin)}
    assert all(commands[name].state.usable for name in HELP_ORDER)
    result = gptrs("list", "backends", "--json")
    assert (result.code, result.json["backends"][-1]["name"]) == (0, "ref")


def test_a_name_that_excludes_only_a_built_in_command_is_a_warning(gptrs):
    result = gptrs("-p", "no:doctor", "list", "models")
    assert result.code == 0
    assert "no plugin or distribution is called `doctor`, the name selects nothing" in result.err


def test_entry_points_that_cannot_be_read_are_said(gptrs_process, tmp_path: Path):
    info = tmp_path / "gptrs_cli-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gptrs-cli\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("gptrs.commands\nnonsense\n")
    result = gptrs_process("list", "plugins", environment={"PYTHONPATH": str(tmp_path)})
    assert (result.code, result.out) == (4, "")
    assert "error: the entry points of `gptrs-cli` cannot be read: " in result.err
    assert "reinstall" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [("gptrs ge", "generate"), ("gptrs list pl", "plugins"), ("gptrs generate --top", "--top-k")],
)
def test_completion_knows_them(gptrs_process, words, expected):
    environment = {
        "_GPTRS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    assert expected in gptrs_process(environment=environment).out.split()
