"""`gptrs serve` before it answers: refused words, key files, and what a terminal is told."""

from __future__ import annotations

import os
from functools import partial

import pytest

from gptrs.errors import CheckpointError, ModelError
from gptrs.plugins.manager import configure
from gptrs_cli.main import main
from gptrs_runtime.load import load_model
from gptrs_serve.command import _origins
from gptrs_serve.keys import Key, read_keys
from gptrs_serve.problems import problem_of
from gptrs_serve.served import about_default, load_models


def test_a_key_file_that_all_can_read_is_told(tmp_path, capsys):
    (tmp_path / "keys").write_text("secret\n", encoding="utf-8")
    for mode, told in ((0o644, True), (0o640, False)):
        (tmp_path / "keys").chmod(mode)
        assert read_keys(tmp_path / "keys") == [Key("secret")]
        assert ("every user of this machine can read" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=demo", "a=demo"], "two models are called `a`"),
        (["--api-key-file", os.devnull], "has no key"),
        (["--host", "203.0.113.1"], "cannot be listened on"),
        (["a=demo", "--adapter", "b:c=x"], "there is no model `b` to adapt"),
        (["a=demo", "--adapter", "a=x"], "two models are called `a`"),
        (["a=demo", "--adapter", "x"], "`x` is not [MODEL:]NAME=DIR"),
        (["a=demo", "--draft", "demo", "--draft", "a=demo"], "`a` has two drafts"),
        (["--backend-option", "x=1"], "`ref`"),
        (["a="], "`a=` names no model; write NAME=MODEL"),
        ([""], "`` names no model"),
        (["demo", "--draft", "demo="], "the name of a model is empty"),
        (["--cors", "nonsense"], "`nonsense` is not an origin; write https://HOST[:PORT]"),
        (["--cors", "https://a.example/page"], "`https://a.example/page` is not an origin"),
        (["--cors", "https://a.example/"], "`https://a.example/` is not an origin"),
        (["--cors", "https://a.example:port"], "is not an origin"),
        (["--cors", "https://[::1"], "is not an origin"),
        (["--cors", ""], "`` is not an origin"),
        (["--allow-host", "https://a.example"], "`https://a.example` is not a host"),
        (["--most-body", "lots"], "`lots` is not a size; write it as `20MB`"),
        (["--cache-budget", "200%"], "200%"),
        (["--log-format", "xml"], "`xml` is neither text nor json"),
        (["--root-path", "a/"], "`a/` is not a path; write /PATH"),
        (["--ssl-certfile", os.devnull], "--ssl-certfile and --ssl-keyfile go together"),
        (["--uds", "/dev/null"], "`/dev/null` cannot be listened on"),
        (["--config", os.devnull + "x"], "cannot be read"),
        (["--weights", "q5"], "q5"),
        (["--precision", "f8"], "f8"),
        (["--weight-budget", "lots"], "lots"),
    ],
)
def test_refused_commands(capsys, words, message):
    configure()
    assert main(["serve", *words, "--port", "0", "--backend", "ref"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "https://[::1]:8080", "chrome-extension://abc"]
)
def test_origins(origin):
    assert _origins([origin]) == [origin]


def test_a_terminal_is_told_what_is_loaded(model, monkeypatch, capsys):
    asked = ["a=nothere"]
    for shown, terminal in (("", False), ("loading nothere\n", True)):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        with pytest.raises(ModelError, match="`nothere` does not exist"):
            load_models(asked, partial(load_model, backend=model.backend))
        assert capsys.readouterr().err == shown


def test_a_server_without_a_model_says_what_it_serves_and_how_to_serve_another():
    told = about_default(load_model("demo", "ref"))
    assert told.startswith("no model was named: the bundled `demo` is served (a small GPT-2 ")
    assert "M parameters" in told
    assert "`smollm2:135m`" in told
    assert "`gptrs models recommended chat`" in told


def test_weights_that_changed_are_no_fault_of_who_asks(caplog):
    changed = CheckpointError("`model.safetensors` was changed while the model was in use")
    problem = problem_of(changed)
    assert (problem.status, problem.body()["error"]["type"]) == (500, "server_error")
    assert "was changed" in caplog.text
    assert problem_of(ModelError("`m` has no tokenizer.json")).status == 400
