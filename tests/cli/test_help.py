"""The help as a terminal of 80 columns shows it."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import pytest

from gptrs_cli.command_group import HELP_ORDER, commands_by_group
from gptrs_cli.commands.list import LISTS
from support.command_lines import require_taken

MOST_LINES, MOST_LINES_OF_ALL = 80, 83
GROUPS = ("list", "bench", "cache", "conformance", "models", "plugins")
COMMANDS = (
    *((name,) for name in HELP_ORDER),
    *(("list", each.name) for each in LISTS),
    *(("bench", name) for name in ("generate", "forward")),
    *(("cache", name) for name in ("info", "warm", "clear")),
    *(("models", name) for name in ("recommended", "list", "pull", "path", "remove")),
    *(("conformance", name) for name in ("run", "report")),
    ("plugins", "check"),
)
OF_PLUGINS = (
    pytest.param(
        ("batch",),
        marks=pytest.mark.skipif(not find_spec("gptrs_ray"), reason="needs gptrs-ray"),
    ),
    *(("finetune",), ("new",), ("serve",), ("train",)),
)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_command_does_is_said_whole(gptrs, group):
    _, _, commands = gptrs(group, "--help").out.partition("\nCommands:\n")
    assert commands
    assert not [line for line in commands.splitlines() if line.endswith("...")]


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_the_help_of_each_command_fits(gptrs, command):
    result = gptrs(*command, "--help")
    assert result.code == 0
    lines = result.out.splitlines()
    if command:
        assert len(lines) <= MOST_LINES
    else:  # a line for each command of a plugin, however many are installed
        of_plugins = commands_by_group().get("Commands of plugins", [])
        assert len(lines) - len(of_plugins) <= MOST_LINES_OF_ALL
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [*COMMANDS, *OF_PLUGINS], ids=" ".join)
def test_each_command_has_two_examples_that_it_takes(gptrs, words):
    shown = gptrs(*words, "--help").out.partition("\nExamples:\n")[2].splitlines()
    assert len(shown) == 2
    for example in shown:
        assert shlex.split(example)[: len(words) + 1] == ["gptrs", *words]
        require_taken(example)


def test_a_model_may_stand_first(gptrs, model_directory):
    options = ("--greedy", "--max-tokens", "2", "--json")
    named = gptrs("generate", "--model", model_directory, "the cat", *options)
    first = gptrs("generate", model_directory, "the cat", *options)
    assert first.code == 0, first.err
    assert first.json["token_ids"] == named.json["token_ids"]
    one = gptrs("tokenize", "demo").out
    assert len(one.split(",")) == len(gptrs("tokenize", "demo", "demo").out.split(","))
    shape = gptrs("forward", model_directory, "--prompt", "the", "--json").json["shape"]
    assert (
        shape
        == gptrs("forward", "--model", model_directory, "--prompt", "the", "--json").json["shape"]
    )
    for wrong in (
        ("nothing", "x"),
        (model_directory, "x", "y"),
        (model_directory, "--model", "m", "x"),
    ):
        assert gptrs("generate", *wrong).code == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("embed", "[MODEL] [OPTIONS]"),
        ("generate", "[MODEL] [OPTIONS] [PROMPT]"),
        ("chat", "[OPTIONS] [MODEL]"),
        ("inspect", "[OPTIONS] {PATH}"),
    ],
)
def test_the_usage_shows_where_the_model_stands(gptrs, command, words):
    assert gptrs(command, "--help").out.startswith(f"Usage: gptrs {command} {words}\n")


def test_a_word_beside_the_file_of_a_text_is_the_model(gptrs, model_directory, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a cat", encoding="utf-8")
    measured = gptrs("perplexity", model_directory, "--file", text, "--json")
    assert measured.json["model"] == model_directory.name
    assert "exclude each other" in gptrs("perplexity", "a text", "--file", text).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["generate", "smolm2", "hi"],
            "`smolm2`, the first argument, names no model; did you mean",
        ),
        (["generate", "Hello", "there"], "put a text of several words into quotes"),
        (["classify", "smollm"], "did you mean `smolvlm` or `smollm2`?"),
        (["classify", "Well done."], "missing option '--model'"),
        (["run", "smollm"], "did you mean `smolvlm` or `smollm2`?"),
        (["run", "nothing"], "`nothing` does not exist; name the folder"),
        (["run", "nothing.ptir"], "nothing.ptir`: No such file or directory"),
    ],
)
def test_a_name_of_no_model_is_told_as_such(gptrs, words, said):
    result = gptrs(*words)
    assert result.code in (2, 3)
    assert said in result.err


@pytest.mark.parametrize(
    ("option", "value", "must"),
    [
        ("--max-tokens", "many", "must be a valid integer, got `many`"),
        ("--temperature", "hot", "must be a valid number, got `hot`"),
    ],
)
def test_a_malformed_value_is_told(gptrs, option, value, must):
    result = gptrs("generate", "hi", option, value)
    assert result.code == 2
    assert f"invalid value for '{option}': {must}; see" in result.err


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_shows_its_help(gptrs, group):
    alone = gptrs(group)
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == gptrs(group, "--help").out


@pytest.mark.parametrize(("short", "whole"), [("pull", "pull"), ("rm", "remove"), ("ls", "list")])
def test_the_names_that_ollama_gives_to_commands(gptrs, short, whole):
    mine, theirs = (gptrs(*words, "--help").out for words in ((short,), ("models", whole)))
    assert mine.partition("\n")[2] == theirs.partition("\n")[2].partition("\nExamples:\n")[0]


@pytest.mark.parametrize(("name", "hint"), [("ps", "`gptrs models list`"), ("show", "inspect")])
def test_a_command_of_another_tool_is_answered_with_ours(gptrs, name, hint):
    result = gptrs(name, "x")
    assert result.code == 2
    assert result.err.startswith(f"error: there is no command `{name}`; ")
    assert hint in result.err


def test_shared_options_are_explained_once(gptrs):
    explained = "Limit the memory of the weights"
    assert explained in " ".join(gptrs("--help").out.split())
    for command in ("generate", "forward", "trace", "embed", "validate", "bench generate"):
        shown = " ".join(gptrs(*command.split(), "--help").out.split())
        assert explained not in shown
        pointer = shown.partition("Shared options, explained by `gptrs --help`: ")[2]
        assert "--weight-budget" in pointer
        assert "--json" in pointer


def test_further_options_are_explained_where_all_are_asked_for(gptrs):
    brief, whole = gptrs("generate", "--help").out, gptrs("generate", "--help-all").out
    assert "--context-shift" in brief.partition("explained by --help-all:")[2]
    explanation = "When the context is full"
    assert explanation not in brief
    assert explanation in whole
    assert "Penalties:\n  --repetition-penalty X" in whole
    assert set(brief.split()) - set(whole.split()) <= {"--help-all:", "Further", "explained"}


def test_the_bare_command_says_how_to_begin(gptrs):
    result = gptrs()
    assert result.code == 0
    assert len(result.out.splitlines()) < 20
    for word in ('gptrs generate "def read"', "gptrs --help", *HELP_ORDER):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gptrs generate --backend re", {"ref"}),
        ("gptrs generate --model de", {"demo"}),
        ("gptrs run --override gel", {"gelu=portable", "gelu=benchmark"}),
        ("gptrs -p no:num", {"no:numba"}),
        ("gptrs inspect x --why canon", {"canonicalization"}),
        ("gptrs tok", {"tokenize"}),
    ],
)
def test_names_are_completed(gptrs_process, typed, expected):
    words = typed.split()
    asked = {
        "_GPTRS_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": f"{len(words) - 1}",
    }
    found = gptrs_process(environment=asked).out.split()
    assert expected <= set(found)
    assert all(name.startswith(words[-1]) for name in found)
