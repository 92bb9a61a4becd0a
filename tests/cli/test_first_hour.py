"""What somebody meets who has just installed it: a module, completion, an answer that is empty."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gptrs as library
from runtime.tiny_chat import save_scripted_chat, save_tiny_chat

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gptrs", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gptrs {library.__version__}\n"


def test_the_module_says_what_is_missing(monkeypatch, capsys):
    from gptrs import __main__ as module

    monkeypatch.setattr(module.metadata, "entry_points", lambda **_: [])
    assert module.main() == 2
    assert "the command line is not installed; run `" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_ends_well(gptrs_process, tmp_path, shell):
    # Typer takes the shell that the process descends from, if it can tell: CI may have none.
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = gptrs_process("--show-completion", shell, environment=environment)
    assert (shown.code, "complete" in shown.out or "compdef" in shown.out) == (0, True)
    installed = gptrs_process("--install-completion", shell, environment=environment)
    assert (installed.code, installed.err) == (0, "")


def test_a_model_tuned_to_chat_that_says_nothing_to_a_prompt(gptrs, tmp_path):
    model = save_scripted_chat(tmp_path / "m", "", prompt="the cat", template=TEMPLATE)
    plain = gptrs("generate", "--model", model, "the cat", "--greedy")
    assert "it was tuned to chat: try --chat" in plain.err
    for options in (("--chat",), ("--ignore-eos", "--max-tokens", "3"), ("--regex", "a")):
        made = gptrs("generate", "--model", model, "the cat", "--greedy", *options)
        assert "try --chat" not in made.err


def test_an_answer_that_is_cut_says_so(gptrs, tmp_path):
    model = save_tiny_chat(tmp_path / "m")
    options = ("--ignore-eos", "--max-tokens", "3", "--greedy")
    chat = gptrs("chat", model, *options, stdin=b"hello\n")
    assert "the answer was cut after 3 tokens: `--max-tokens N` allows more" in chat.err
    text = gptrs("generate", "--model", model, "hello", *options)
    assert "3 new tokens" in text.err
    assert "cut there (--max-tokens)" in text.err


def test_what_a_notebook_shows():
    model = library.load_model(backend="ref")
    assert repr(model).startswith("<LoadedModel demo: gpt2 on ref, 3.16 M parameters f16, context")
    with library.profiling() as profile:
        made = library.generate(model, "a <b>", max_tokens=3, temperature=0)
    assert str(made) == made.text
    assert "<b>" not in made._repr_html_().replace("<small>", "")
    assert made._repr_html_().endswith("<small>3 tokens, length</small>")
    assert repr(profile).startswith("<Profile of ")
    assert "asked for by" in profile._repr_html_()


def test_tab_completes_a_model():
    jedi = pytest.importorskip("jedi", reason="jedi completes names in IPython")
    model = library.load_model(backend="ref")
    found = jedi.Interpreter("model.forw", [{"model": model}]).complete()
    assert [each.name for each in found] == ["forward"]


def test_the_help_of_what_generates_lists_the_options():
    for function in (library.generate, library.stream, library.generate_batch):
        lines = (function.__doc__ or "").splitlines()
        assert any(line.startswith("  max_tokens: ") for line in lines)
        assert any(line.startswith("  temperature: ") for line in lines)


def test_an_error_in_a_notebook_shows_the_lines_of_the_cell_alone():
    cell = {"__name__": "__main__"}
    lines = "import gptrs\ndef mine(path):\n    gptrs.load_model(path)\n"
    exec(compile(lines, "<cell>", "exec"), cell)
    with pytest.raises(library.api.ModelError) as found:
        cell["mine"]("nosuch/")
    begin, *calls, message = found.value._render_traceback_()
    assert begin == "Traceback (most recent call last):"
    assert calls[-1].startswith('  File "<cell>", line 3, in mine')
    assert not any("gptrs_runtime" in call for call in calls)
    assert message == f"ModelError: {found.value}"
