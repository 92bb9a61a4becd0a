"""`gptrs convert`: what is written, what is said of it, and what is refused."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

import gptrs as library
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive

TOKENS = np.array([[1, 2, 3, 4]])


def _logits(path):
    return library.load_model(path, backend="ref").forward(TOKENS)


def test_a_model_in_one_file_and_back(gptrs, model_directory, tmp_path):
    expected = _logits(model_directory)
    one, back = tmp_path / "one.gptrschk", tmp_path / "back"
    result = gptrs("convert", model_directory, one)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"wrote {one}: gpt2 model, 28 tensors, 37.1 k parameters")
    assert gptrs("convert", one, back).code == 0
    assert set(os.listdir(back)) == set(os.listdir(model_directory))
    for path in (one, back):
        np.testing.assert_array_equal(_logits(path), expected)


def test_a_checkpoint_generates_and_is_inspected(gptrs, model_directory, tmp_path):
    one = tmp_path / "one.gptrschk"
    gptrs("convert", model_directory, one)
    options = ("--prompt", "the cat", "--max-tokens", "3", "--greedy", "--json", "--backend", "ref")
    texts = [gptrs("generate", "--model", p, *options).json["text"] for p in (model_directory, one)]
    assert texts[0] == texts[1]
    report = gptrs("inspect", one, "--json").json
    assert (report["kind"], report["totals"]["tensors"]) == ("gpt2", 28)
    load = report["load"]
    assert load["mapped_bytes"] == one.stat().st_size
    assert load["read_bytes"] == one.stat().st_size - report["totals"]["bytes"]
    assert "a load      reads " in gptrs("inspect", one).out


def test_json_says_what_was_written(gptrs, model_directory, tmp_path):
    (model_directory / "pytorch_model.bin").write_bytes(b"pickle")
    out = tmp_path / "half"
    options = ("--dtype", "bf16", "--shard-size", "30kB", "--json")
    report = gptrs("convert", model_directory, out, *options).json
    (model_directory / "pytorch_model.bin").unlink()
    shards = [name for name in report["files"] if name.startswith("model-")]
    assert report["files"] == sorted(os.listdir(out))
    assert len(shards) > 2
    assert all((out / name).stat().st_size < 33_000 for name in shards)
    assert report["left_out"] == ["pytorch_model.bin"]
    assert (report["format"], report["kind"], report["rounded"]) == ("hf", "gpt2", 28)
    assert report["bytes"] == 2 * report["parameters"]
    assert gptrs("inspect", out, "--json").json["totals"]["parameters_by_dtype"] == {
        "bf16": report["parameters"]
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".gptrsten"])
def test_tensors_alone(gptrs, tmp_path, suffix):
    source, out = tmp_path / "in.npz", tmp_path / f"out{suffix}"
    arrays = {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "n": np.arange(3)}
    write_archive(source, arrays)
    report = gptrs("convert", source, out, "--dtype", "f16", "--json").json
    assert (report["format"], report["kind"], report["rounded"]) == ("tensors", None, 1)
    archive = open_archive(out)
    np.testing.assert_array_equal(archive.read("a"), arrays["a"].astype(np.float16))
    np.testing.assert_array_equal(archive.read("n"), arrays["n"])


def test_what_exists_is_replaced_only_with_force(gptrs, model_directory, tmp_path):
    one, folder = tmp_path / "one.gptrschk", tmp_path / "folder"
    for path in (one, folder):
        assert gptrs("convert", model_directory, path).code == 0
        again = gptrs("convert", model_directory, path)
        assert again.code == 2
        assert "`--force` replaces" in again.err
    (folder / "old").touch()
    assert gptrs("convert", model_directory, folder, "--force", "--dtype", "f16").code == 0
    assert set(os.listdir(folder)) == set(os.listdir(model_directory))
    assert sorted(os.listdir(tmp_path)) == ["folder", "one.gptrschk"]


def test_a_model_can_be_converted_in_place(gptrs, model_directory, tmp_path):
    folder = tmp_path / "m"
    gptrs("convert", model_directory, folder)
    assert gptrs("convert", folder, folder, "--force", "--dtype", "f16").code == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "gpt2"
    assert np.abs(_logits(folder) - _logits(model_directory)).max() < 0.1


def test_a_folder_that_is_no_model_is_never_replaced(gptrs, model_directory, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    result = gptrs("convert", model_directory, tmp_path, "--force")
    assert result.code == 2
    assert "holds no model that could be replaced: it has no `config.json`" in result.err
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_folders_of_others_beside_a_model_are_not_removed(gptrs, model_directory, tmp_path):
    out = tmp_path / "project"
    assert gptrs("convert", model_directory, out).code == 0
    for name in ("src", "1_Pooling"):
        (out / name).mkdir()
        (out / name / "file").write_text("mine")
    result = gptrs("convert", model_directory, out, "--force")
    assert result.code == 2
    assert "holds more than a model, which replacing it would remove: the folder `src`" in (
        result.err
    )
    assert (out / "src" / "file").read_text() == "mine"
    shutil.rmtree(out / "src")
    assert gptrs("convert", model_directory, out, "--force").code == 0


def test_the_source_is_never_replaced_with_the_folder_around_it(gptrs, model_directory, tmp_path):
    outer = tmp_path / "outer"
    gptrs("convert", model_directory, outer)
    gptrs("convert", model_directory, outer / "1_inner")
    result = gptrs("convert", outer / "1_inner", outer, "--force")
    assert result.code == 2
    assert "which would be overwritten" in result.err
    assert (outer / "1_inner" / "config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("out.npz", "--to", "hf"), "`--to hf` asks for a model; leave out `--to`"),
        (("out.gptrschk", "--shard-size", "1MB"), "leave out `--shard-size`"),
        (("out", "--shard-size", "much"), "`much` is not a size of files; write it as `5GB`"),
        (("out", "--dtype", "f8"), "invalid value for '--dtype'"),
    ],
)
def test_arguments_that_do_not_fit_together(gptrs, model_directory, tmp_path, arguments, message):
    result = gptrs("convert", model_directory, tmp_path / arguments[0], *arguments[1:])
    assert result.code == 2
    assert message in result.err.lower().replace("error: ", "") or message in result.err
    assert os.listdir(tmp_path) == []


def test_tensors_alone_make_no_model(gptrs, tmp_path):
    write_archive(tmp_path / "a.npz", {"a": np.zeros(3)})
    result = gptrs("convert", tmp_path / "a.npz", tmp_path / "m")
    assert result.code == 3
    assert "holds tensors without the settings of a model" in result.err


def test_a_destination_without_a_folder(gptrs, model_directory, tmp_path):
    result = gptrs("convert", model_directory, tmp_path / "no" / "one.gptrschk", "--json")
    assert (result.code, result.json["code"]) == (3, "checkpoint")
    assert "No such file or directory" in result.json["message"]


def test_a_source_that_does_not_exist(gptrs, tmp_path):
    result = gptrs("convert", tmp_path / "absent", tmp_path / "one.gptrschk")
    assert result.code == 3
    assert "does not exist" in result.err


@pytest.mark.parametrize("words", [(), ("--symbol", "batch=2")])
def test_a_program_is_not_what_convert_writes(gptrs, model_directory, tmp_path, words):
    result = gptrs("convert", model_directory, tmp_path / "x.ptir", *words)
    assert (result.code, result.out) == (2, "")
    assert "x.ptir` is called a program" in result.err
    assert f"`gptrs inspect {model_directory} --print text`" in result.err
    assert not (tmp_path / "x.ptir").exists()
