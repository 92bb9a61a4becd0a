"""Every failure is one line on standard error with its exit code, or one JSON object."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.plugins.manager import PluginManager
from gptrs_cli.terminal.failures import report

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def rename_dtype(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data.replace(b'"F32"', b'"F64"', 1))


def integer_weight(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "transformer.wte.weight"
    save_file({**tensors, name: tensors[name].astype("int32")}, folder / WEIGHTS)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["transformer.ln_f.weight"]
    save_file(tensors, folder / WEIGHTS)


def shard_outside(folder: Path) -> None:
    names = load_file(folder / WEIGHTS)
    shutil.move(folder / WEIGHTS, folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../outside.safetensors")}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def unknown_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "hopfield"}))


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{'model_type': 'gpt2'}", encoding="utf-8")


def is_one_error_line(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["model.safetensors"]),
        (rename_dtype, ["f64[", "bytes"]),
        (integer_weight, ["`transformer.wte.weight`", "si32[", "needs floats"]),
        (drop_tensor, ["`transformer.ln_f.weight`"]),
        (shard_outside, ["../outside.safetensors", "never opened"]),
        (unknown_kind, ["there is no model kind `hopfield`; `gptrs list models` shows"]),
        (no_json, ["config.json", "JSON"]),
        (lambda folder: (folder / "config.json").unlink(), ["has no `config.json`"]),
        (lambda folder: (folder / WEIGHTS).unlink(), ["neither `model.safetensors`"]),
    ],
)
def test_a_model_that_is_not_as_it_should_be_exits_with_3(
    gptrs, model_directory, tmp_path, damage: Callable[[Path], None], words
):
    folder = tmp_path / "damaged"
    shutil.copytree(model_directory, folder)
    damage(folder)
    result = gptrs("generate", "--model", folder, "--prompt-ids", "1", "--max-tokens", 2)
    assert (result.code, result.out) == (3, "")
    assert is_one_error_line(result.err)
    for word in words:
        assert word in result.err


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a\nb", r"a\nb"), ("50%s %", "50%s %"), (os.fsdecode(b"a\xffb"), r"a\udcffb")],
)
def test_errors_about_a_file_with_an_odd_name_are_a_line_with_the_whole_name(
    gptrs, tmp_path, monkeypatch, name, shown
):
    monkeypatch.chdir(tmp_path)
    np.save(f"{name}.npy", np.zeros(2, np.float32))
    save_file({"w": np.zeros(2, np.float32)}, f"{name}.safetensors")
    said = gptrs("convert", f"{name}.safetensors", f"{name}.npz")
    assert (said.code, said.out.partition(": ")[0]) == (0, f"wrote {shown}.npz")
    for arguments, told in (
        (("convert", f"{name}.npy", f"{name}.npz"), f"`{shown}.npz` exists"),
        (("convert", f"{name}.npy", "z.ptir"), f"`gptrs inspect {shown}.npy --print"),
        (("inspect", f"{name}.npy", "--print", "text"), f"`{shown}.npy` is none"),
        (("inspect", f"{name}.gguf"), f"`{shown}.gguf` does not exist"),
    ):
        error = gptrs(*arguments).err
        assert is_one_error_line(error)
        assert told in error
    result = gptrs("convert", f"{name}.npy", "other.npz")
    assert result.code == (2 if "udc" in shown else 0)
    assert ("has a name that is not UTF-8" in result.err) == (result.code == 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "/nowhere/at/all", "--prompt", "x"], 3, "`/nowhere/at/all` does not exist"),
        (["--prompt-file", "/nowhere/at/all"], 3, "cannot read the prompt from `/nowhere/at/all`"),
        (["--prompt-file", "."], 3, "cannot read the prompt from `.`"),
        (["--backend", "abacus"], 4, "there is no backend `abacus`; available: "),
        (["--threads", "0"], 2, "invalid value for '--threads'"),
        (["--weight-budget", "x"], 2, "`--weight-budget` must be a size above 0"),
        (["--keep", "2"], 2, "`--keep` says what stays when the context shifts"),
        (["--mtp", "--draft", "demo"], 2, "`--mtp` and `--draft` both guess every token"),
        (["--dump-dir", "d" * 300], 3, "`: File name too long"),
        (["--prompt-ids", "1,two"], 2, "`--prompt-ids` needs tokens such as 1,2,3, got `1,two`"),
        (["--prompt-ids", ""], 2, "`--prompt-ids` needs tokens"),
        (["--prompt-ids", "123456"], 2, "token 123456 is not in the vocabulary"),
        (["--prompt-ids=-1"], 2, "`--prompt-ids` needs tokens"),
        (["--prompt", "a", "--prompt-ids", "1"], 2, "`--prompt` and `--prompt-ids` exclude"),
        (["--prompt", "a" * 5000], 2, "do not fit into the context of 512 tokens"),
        (["--max-tokens", "100000"], 2, "new ones do not fit into the context"),
        (["--max-tokens", "0"], 2, "`--max-tokens` must be at least 1"),
        (["--max-tokens", "many"], 2, "invalid value for '--max-tokens'"),
        (["--greedy", "--top-k", "4"], 2, "`--greedy` and `--top-k` exclude each other"),
        (["--greedy", "--temperature", "1"], 2, "`--greedy` and `--temperature` exclude"),
        (["--temperature", "nan"], 2, "`--temperature` must be a finite number"),
        (["--top-p", "1.5"], 2, "`--top-p` must be from 0 to 1"),
        (["--top-k", "-1"], 2, "`--top-k` must be at least 1"),
        (["--stop", ""], 2, "a stop string must not be empty"),
        (["--no-such-option"], 2, "no such option"),
        (["a prompt", "stray"], 2, "see `gptrs generate --help`"),
        (["-p", "name"], 2, "expected `no:NAME`"),
    ],
)
def test_a_mistake_is_one_line(gptrs, arguments, code, words):
    result = gptrs("generate", *arguments)
    assert (result.code, result.out) == (code, "")
    assert is_one_error_line(result.err)
    assert words in result.err


def test_a_name_that_the_system_refuses_is_a_wrong_file(gptrs):
    result = gptrs("quantize", "demo", "a" * 300)
    assert (result.code, result.out) == (3, "")
    assert result.err == f"error: the system refuses `{'a' * 197}...`: File name too long\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "no such command 'frobnicate'"),
        (["generat"], "did you mean 'generate'"),
        (["list", "nothing"], "no such command 'nothing'"),
        (["inspect"], "missing argument"),
        (["rank", "x"], "missing option '--model'; for example `gptrs rank baai/bge-reranker-base"),
        (["steer"], "missing option '--pairs'"),
        (["new", "sink", "x"], "'kind': 'sink' is not one of 'backend'"),
        (["--unknown"], "no such option: --unknown"),
        (["generate", "--model", "tiny"], "there is no prompt"),
        (["serve", "--model", "tiny"], "the model stands there without it, as in `gptrs serve m"),
        (["inspect", "--model", "tiny"], "without it, as in `gptrs inspect model`"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_with_2(gptrs, arguments, words):
    result = gptrs(*arguments)
    assert (result.code, result.out) == (2, "")
    assert is_one_error_line(result.err)
    assert words in result.err.lower()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["generate", "--backend", "abacus", "--json"], 4, "plugin"),
        (["--json", "inspect", "/nowhere"], 3, "model"),
        (["generate", "--no-such-option", "--json"], 2, "usage"),
        (["generate", "--json", "--max-tokens", "9999"], 2, "context"),
        (["generate", "--json", "--prompt-file", "/nowhere"], 3, "file"),
    ],
)
def test_an_error_as_json_goes_to_stdout(gptrs, arguments, code, word):
    result = gptrs(*arguments)
    assert (result.code, result.err) == (code, "")
    assert result.json.keys() == {"schema", "code", "message", "hint"}
    assert result.json["code"] == word
    assert result.json["message"]


@pytest.mark.parametrize("position", ["before", "after"])
def test_debug_shows_the_traceback(gptrs, position):
    command = ["inspect", "/nowhere"]
    command.insert(0 if position == "before" else 2, "--debug")
    result = gptrs(*command)
    assert result.code == 3
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("error: `/nowhere` does not exist")


def test_what_nobody_foresaw_is_called_a_bug(gptrs, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("gptrs.plugins.manager.PluginManager.records", fail)
    result = gptrs("list", "plugins")
    assert result.code == 1
    assert is_one_error_line(result.err)
    assert "this is a bug" in result.err
    assert "ValueError: two lines" in result.err
    assert "--debug" in result.err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 1, "error: out of memory"),
        (PermissionError(13, "Permission denied", "x"), 3, "error: the system refuses `x`: "),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_the_system_is_not_a_bug(capsys, error, code, words):
    assert report(error, as_json=False, debug=False) == code
    assert capsys.readouterr().err.startswith(words)


def test_names_from_a_file_cannot_steer_the_terminal(gptrs, tmp_path):
    header = json.dumps(
        {"\x1b[2Jx": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    result = gptrs("inspect", file)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert r"\x1b[2Jx" in result.out


def test_a_wrong_variable_is_blamed_and_not_the_option(gptrs, monkeypatch):
    monkeypatch.setenv("GPTRS_TEMPERATURE", "hot")
    result = gptrs("generate", "a")
    assert result.code == 2
    assert "the variable `GPTRS_TEMPERATURE=hot`" in result.err
    assert "--temperature" not in result.err


@pytest.mark.parametrize("command", ["classify", "embed", "tag", "fill"])
def test_a_text_as_an_argument_is_told_where_it_stands(gptrs, command):
    refused = gptrs(command, "good", "--model", "demo")
    assert refused.code == 2
    assert "(good); a text stands after `--text`, see `gptrs " in refused.err
    assert "`--text`" not in gptrs("list", "models", "extra").err


def test_a_command_of_a_package_that_is_missing_names_it(gptrs, monkeypatch):
    monkeypatch.setattr("gptrs_cli.command_group._foreign", dict)
    monkeypatch.setattr(PluginManager, "installed", lambda *_: [])
    result = gptrs("serve", "--port", "1")
    assert result.code == 2
    assert "the command `serve` comes with `gptrs-serve`, which is not installed; run `" in (
        result.err
    )
