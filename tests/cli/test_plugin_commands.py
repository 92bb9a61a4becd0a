"""Commands of plugins: described in the help, imported when used, and never fatal."""

from __future__ import annotations

import pytest

DESCRIBE = """
from gptrs.api import CommandPlugin
{name} = CommandPlugin(
    name="{command}", summary="{summary}", factory="{factory}", api="0.1"
)
"""
WORK = """
from typing import Annotated
import typer
from gptrs.api import UsageError

def greet(name: str, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    if name == "nobody":
        raise UsageError("there is nobody", hint="name somebody")
    print(f"hello {name}".upper() if loud else f"hello {name}")

empty = typer.Typer()
app = typer.Typer()

@app.command("one")
def one() -> None:
    print("one")

@app.command("two")
def two() -> None:
    print("two")
"""
COMMANDS = {
    "greet": ("greet people", "stranger_work:greet"),
    "many": ("several commands", "stranger_work:app"),
    "absent": ("refers to what is not there", "no_such_module:f"),
    "empty": ("an application without commands", "stranger_work:empty"),
    "doctor": ("would replace a built-in command", "stranger_work:greet"),
}


@pytest.fixture
def stranger(tmp_path, gptrs_process):
    """Run `gptrs` in a process that sees a distribution with commands, one of them broken."""
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    entries = [f"{name} = stranger_plugin:{name.upper()}" for name in COMMANDS]
    lines = ["[gptrs.commands]", *entries, "crash = stranger_crash:PLUGIN"]
    lines += ["[gptrs.command]", "wrong_group = stranger_plugin:GREET", ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    described = (
        DESCRIBE.format(name=name.upper(), command=name, summary=summary, factory=factory)
        for name, (summary, factory) in COMMANDS.items()
    )
    (tmp_path / "stranger_plugin.py").write_text("".join(described))
    (tmp_path / "stranger_work.py").write_text(WORK)
    (tmp_path / "stranger_crash.py").write_text("raise RuntimeError('it crashed')")

    def run(*arguments: object, **environment: str):
        seen = {"PYTHONPATH": str(tmp_path), "GPTRS_CACHE_DIR": str(tmp_path / "cache")}
        return gptrs_process(*arguments, environment={**seen, **environment})

    return run


def summaries(help_text: str) -> dict[str, str]:
    _, _, commands = help_text.partition("\nCommands of plugins:\n")
    lines = [line.split(maxsplit=1) for line in commands.partition("\n\n")[0].splitlines()]
    return {name: summary for name, summary in lines}


def test_commands_are_part_of_the_help(stranger):
    result = stranger("--help")
    assert (result.code, result.err) == (0, "")
    assert summaries(result.out)["greet"] == "From stranger 1.0."
    assert "Check the installation" in result.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "backends"]])
def test_no_command_is_imported_for_others(stranger, tmp_path, arguments):
    source = tmp_path / "stranger_plugin.py"
    source.write_text(source.read_text() + "open(__file__ + '.imported', 'w')\n")
    assert stranger(*arguments).code == 0
    assert not (tmp_path / "stranger_plugin.py.imported").exists()
    stranger("greet", "world")
    assert (tmp_path / "stranger_plugin.py.imported").exists()


def test_the_help_knows_what_a_description_said_until_it_changes(stranger, tmp_path):
    stranger("greet", "world")
    found = summaries(stranger("--help").out)
    assert found["greet"] == "greet people"
    assert found["many"] == "From stranger 1.0.", "this one was not read yet"
    stranger("list", "plugins")
    found = summaries(stranger("--help").out)
    assert found["many"] == "several commands"
    assert found["crash"] == "From stranger 1.0."
    source = tmp_path / "stranger_plugin.py"
    source.write_text(source.read_text().replace("greet people", "greet all people"))
    assert summaries(stranger("--help").out)["greet"] == "From stranger 1.0."


@pytest.mark.long
@pytest.mark.parametrize("content", ["[" * 100_000, "[]", '{"greet@stranger": {}}', "\0"])
def test_a_damaged_file_of_summaries_is_not_used(stranger, tmp_path, content):
    stranger("greet", "world")
    (file,) = (tmp_path / "cache").rglob("summaries.json")
    file.write_text(content)
    assert summaries(stranger("--help").out)["greet"] == "From stranger 1.0."
    stranger("greet", "world")
    assert summaries(stranger("--help").out)["greet"] == "greet people"


def test_a_command_runs_with_its_options(stranger):
    assert stranger("greet", "world").out == "hello world\n"
    assert stranger("greet", "world", "--loud").out == "HELLO WORLD\n"
    assert "--loud" in stranger("greet", "--help").out
    assert stranger("many", "two").out == "two\n"


def test_its_errors_are_reported_like_ours(stranger):
    result = stranger("greet", "nobody")
    assert (result.code, result.err) == (2, "error: there is nobody; name somebody\n")
    result = stranger("wrong_group")
    assert result.code == 4
    assert "group `gptrs.command`; did you mean `gptrs.commands`?" in result.err
    result = stranger("greet")
    assert (result.code, result.out) == (2, "")
    assert "see `gptrs greet --help`" in result.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("crash", "RuntimeError: it crashed"),
        ("absent", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("empty", "command `empty` (from stranger 1.0) is broken"),
    ],
)
def test_a_broken_command_says_why_and_exits_with_4(stranger, command, words):
    result = stranger(command)
    assert (result.code, result.out) == (4, "")
    assert words in result.err
    assert "Traceback" not in result.err
    assert result.err.count("\n") == 1


def test_a_broken_command_stops_no_other(stranger):
    records = {
        record["name"]: record for record in stranger("list", "plugins", "--json").json["plugins"]
    }
    assert records["crash"]["state"] == "broken"
    assert "it crashed" in records["crash"]["reason"]
    table = stranger("list", "plugins")
    assert table.code == 0
    assert "command `crash` is broken: RuntimeError: it crashed; " in table.out


def test_a_built_in_command_cannot_be_replaced(stranger):
    assert "Check the installation" in stranger("doctor", "--help").out


def test_a_command_can_be_disabled(stranger):
    assert "greet" not in summaries(stranger("-p", "no:greet", "--help").out)
    result = stranger("-p", "no:greet", "greet", "world")
    assert result.code == 4
    assert "disabled as `greet`" in result.err


def test_strict_plugins_leave_the_help_alone(stranger):
    assert stranger("--help", GPTRS_PLUGIN_STRICT="1").code == 0
    assert stranger("list", "plugins", GPTRS_PLUGIN_STRICT="1").code == 4
