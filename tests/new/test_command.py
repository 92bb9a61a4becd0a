"""`gptrs new`: what it says, what it refuses, and that nothing half-written is left."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import configure
from gptrs_cli.main import main
from gptrs_new import package


@pytest.fixture
def new(capsys: pytest.CaptureFixture[str]):
    """Run `gptrs new`; its exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        configure()
        code = main(["new", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_it_is_a_plugin_like_a_strangers() -> None:
    record = configure().record(CommandPlugin, "new")
    assert (record.distribution, record.entry_point) == ("gptrs-new", "gptrs_new.plugin:PLUGIN")


def test_it_prints_the_files_and_then_what_to_do(new, tmp_path: Path) -> None:
    code, out, err = new("command", "count-ops", "--into", tmp_path)
    assert code == 0
    folder = tmp_path / "gptrs-command-count-ops"
    assert out.splitlines() == [str(p) for p in sorted(folder.rglob("*")) if p.is_file()]
    assert "gptrs plugins check count-ops" in err
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert os.listdir(tmp_path) == [folder.name]


def test_as_json(new, tmp_path: Path) -> None:
    code, out, err = new("backend", "acme", "--into", tmp_path, "--json")
    made = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert (made["schema"], made["module"]) == ("gptrs.new/1", "gptrs_backend_acme")
    assert "src/gptrs_backend_acme/kernels.py" in made["files"]
    assert made["next"][-1].endswith("--backend acme")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backend", "ref"], "`gptrs-backend-ref` has a backend called `ref`; take another name"),
        (["backend", "Acme"], "`Acme` cannot be the name of a plugin; use lower-case letters"),
        (["model", "../x"], "`../x` cannot be the name of a plugin"),
        (["command", "a" * 41], "cannot be the name of a plugin"),
        (["functional", "gelo.fast"], "there is no functional `gelo`; did you mean `gelu`"),
        (["functional", "gelu"], "`gelu` is a functional; another implementation of it has a name"),
        (["model", "gelu.fast"], "`gelu.fast` cannot be the name of a plugin"),
        (["demo-model", "acme"], "demo-model"),
    ],
)
def test_what_cannot_be_made(new, tmp_path: Path, words: list[str], message: str) -> None:
    code, out, err = new(*words, "--into", tmp_path / "x")
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert not (tmp_path / "x").exists()


def test_what_exists_is_left_alone(new, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "gptrs-model-acme").mkdir()
    code, _, err = new("model", "acme", "--into", tmp_path)
    assert code == 2
    assert "exists already; take another name, or --into another folder" in err
    assert os.listdir(tmp_path) == ["gptrs-model-acme"]
    (tmp_path / "gptrs-model-acme" / "mine").touch()
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # a process that was first
    code, _, err = new("model", "acme", "--into", tmp_path)
    assert (code, "exists already; take another name" in err) == (2, True)
    monkeypatch.undo()
    (tmp_path / "file").touch()
    code, _, err = new("model", "acme", "--into", tmp_path / "file")
    assert (code, "cannot be written" in err) == (2, True)


def test_nothing_half_written_is_left(new, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(package, "rendered", lambda names: {"a": "text", "a/b": "text"})
    code, _, err = new("model", "acme", "--into", tmp_path)
    assert code == 2
    assert "cannot be written" in err
    assert os.listdir(tmp_path) == []
