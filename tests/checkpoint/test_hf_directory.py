"""Model folders: what is read, and one clear error for each way in which a folder is unusable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint.model_folders import (
    ARRAYS,
    CONFIG,
    INDEX,
    SHARD_OF,
    require_the_model,
    sharded,
    single,
    write_json,
)
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, ModelError
from gptrs_runtime.sources.hf_directory import HfDirectory


def _refusal(folder: Path) -> str:
    """The message of the error on opening a folder and reading all of its weights."""
    with pytest.raises(ModelError) as caught:
        _read_all(HfDirectory.open(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def _read_all(directory: HfDirectory) -> dict[str, np.ndarray]:
    names = directory.weights.names()
    return {name: directory.weights.load(name) for name in names}


@pytest.mark.parametrize("make", [single, sharded])
def test_reads_settings_and_weights(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "m")
    write_json(folder / "generation_config.json", {"eos_token_id": 7})
    write_json(folder / "tokenizer.json", {})
    directory = HfDirectory.open(folder)
    assert directory.config == CONFIG
    assert directory.model_type == "tiny"
    assert directory.generation_config == {"eos_token_id": 7}
    assert directory.has_file("tokenizer.json")
    found = _read_all(directory)
    assert set(found) == set(ARRAYS)
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype
        file, entry = directory.weights.locate(name)
        assert (entry.name, entry.shape) == (name, expected.shape)
        assert file.path.parent == folder


def test_files_are_reported(tmp_path: Path) -> None:
    assert HfDirectory.open(single(tmp_path / "a")).weights.files == ("model.safetensors",)
    both = ("one.safetensors", "two.safetensors")
    assert HfDirectory.open(sharded(tmp_path / "b")).weights.files == both


def test_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    directory = HfDirectory.open(single(tmp_path))
    assert directory.generation_config == {}
    assert not directory.has_file("tokenizer.json")
    assert directory.read_bytes("chat_template.jinja") is None
    assert directory.read_json("tokenizer_config.json") is None
    write_json(tmp_path / "tokenizer_config.json", {"a": 1})
    assert directory.read_json("tokenizer_config.json") == {"a": 1}


def test_files_of_a_folder_directly_inside(tmp_path: Path) -> None:
    directory = HfDirectory.open(single(tmp_path / "m"))
    assert directory.read_json("config.json", "1_Pooling") is None
    (tmp_path / "m" / "1_Pooling").mkdir()
    write_json(tmp_path / "m" / "1_Pooling" / "config.json", {"a": 1})
    assert directory.read_json("config.json", "1_Pooling") == {"a": 1}
    assert directory.read_json("config.json", "config.json") is None
    for name in ("..", ".", "/", "../m", "1_Pooling/..", "a/b", "a\\b"):
        with pytest.raises(ModelError, match="is not a plain file name"):
            directory.read_json("config.json", name)


def test_one_file_comes_before_an_index(tmp_path: Path) -> None:
    single(sharded(tmp_path))
    assert HfDirectory.open(tmp_path).weights.files == ("model.safetensors",)


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        HfDirectory.open(single(tmp_path)).config["a"] = 1  # type: ignore[index]


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    message = _refusal(tmp_path / "absent")
    assert "absent` does not exist; name the folder that holds `config.json`, a model" in message


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    message = _refusal(single(tmp_path) / "model.safetensors")
    assert f"is a file, a model is a folder; did you mean `{tmp_path}`?" in message


def test_a_pipe_is_called_so(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        ModelError, match=r"pipe` is a device, pipe or socket, a model is a folder$"
    ):
        HfDirectory.open(tmp_path / "pipe")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "is empty; it must hold at least `config.json`" in _refusal(tmp_path)


def test_a_folder_without_config(tmp_path: Path) -> None:
    (single(tmp_path) / "config.json").unlink()
    assert "has no `config.json`, found `model.safetensors`" in _refusal(tmp_path)


def test_a_folder_with_an_adapter_alone(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    message = _refusal(tmp_path)
    assert "has no `config.json`, found `adapter_config.json`" in message
    assert "load the model that it was made for, with `--adapter`" in message


def test_the_folder_of_a_whole_cache_entry(tmp_path: Path) -> None:
    entry = tmp_path / "models--some--name"
    single(entry / "snapshots" / "abc")
    assert "name the folder of one revision below `snapshots`" in _refusal(entry)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (single(tmp_path) / "model.safetensors").unlink()
    assert f"has neither `model.safetensors` nor `{INDEX}`, found `config.json`" in _refusal(
        tmp_path
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q4.gguf", "name the file of llama.cpp itself: `--model` `"),
        ("consolidated.safetensors", "in another form: download `model.safetensors`"),
        ("model.fp16.safetensors", "if `model.fp16.safetensors` has the weights, name it `model.s"),
        ("model.onnx", "runs the ONNX model"),
        ("tf_model.h5", "weights of TensorFlow and Flax are not read"),
    ],
)
def test_a_folder_with_weights_of_another_form(tmp_path: Path, name: str, said: str) -> None:
    (single(tmp_path) / "model.safetensors").rename(tmp_path / name)
    assert said in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q4.gguf", "name the file of llama.cpp itself"),
        ("model_index.json", "a pipeline of diffusers"),
        ("params.json", "download the one of transformers"),
    ],
)
def test_a_folder_of_others_without_config(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).touch()
    assert said in _refusal(tmp_path)


def test_pointers_of_git_lfs_are_called_that(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 548105171\n"
    (single(tmp_path) / "model.safetensors").write_bytes(pointer)
    assert "is a pointer of Git LFS" in _refusal(tmp_path)
    (single(tmp_path) / "tokenizer.json").write_bytes(pointer)
    with pytest.raises(ModelError, match=r"is a pointer of Git LFS, .*`git lfs pull`"):
        HfDirectory.open(tmp_path).read_bytes("tokenizer.json")


def test_shards_without_an_index_are_read_if_all_are_there(tmp_path: Path) -> None:
    single(tmp_path)
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    (tmp_path / "model.safetensors").rename(tmp_path / names[0])
    (tmp_path / names[1]).write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert set(_read_all(HfDirectory.open(tmp_path))) == set(ARRAYS)
    (tmp_path / names[1]).unlink()
    assert f"has 1 of 2 shards and no `{INDEX}`, missing: `{names[1]}`" in _refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.ckpt"])
def test_pickle_files_are_never_read(tmp_path: Path, name: str) -> None:
    (single(tmp_path) / "model.safetensors").rename(tmp_path / name)
    message = _refusal(tmp_path)
    assert f"pickle files (`{name}`), which are never read" in message
    assert "`model.save_pretrained(FOLDER)`" in message


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("config.json", "[1]", "config.json` is not usable JSON: it must be an object"),
        ("config.json", '{"a": 1, "a": 2}', "the key `a` occurs twice"),
        ("config.json", '{"a": 1e999}', "out of range"),
        ("config.json", " " * 10_000_001, "is larger than 10000000 bytes"),
        ("generation_config.json", '{"a": NaN}', "generation_config.json` is not usable JSON"),
        ("model.safetensors.index.json", "{}", "needs `weight_map`"),
        ("model.safetensors.index.json", '{"weight_map": [1]}', "must be an object, found `[1]`"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "b.safetensors", "c": ["b.safetensors"]}}',
            "json`: `weight_map.c` must be a string, found `['b.safetensors']`",
        ),
    ],
)
def test_malformed_json_files(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (sharded(tmp_path) / name).write_text(text)
    assert problem in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("config", "problem"), [({}, "found no such key"), ({"model_type": 3}, "found `3`")]
)
def test_a_config_without_a_kind(tmp_path: Path, config: dict[str, object], problem: str) -> None:
    write_json(single(tmp_path) / "config.json", config)
    with pytest.raises(ModelError, match=r"must name the kind of model in `model_type`") as caught:
        _ = HfDirectory.open(tmp_path).model_type
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "..",
        ".",
        "",
        "a\0.safetensors",
    ],
)
def test_shards_that_are_no_plain_names(tmp_path: Path, shard: str) -> None:
    folder = sharded(tmp_path / "m", {**SHARD_OF, "h.0.bias": shard})
    save_file(ARRAYS, tmp_path / "outside.safetensors")
    message = _refusal(folder)
    assert f"{INDEX}` places tensor `h.0.bias` in " in message
    assert "not the plain name of a file in the folder" in message


def test_a_shard_that_is_a_pickle(tmp_path: Path) -> None:
    message = _refusal(sharded(tmp_path, {**SHARD_OF, "h.0.bias": "pytorch_model.bin"}))
    assert "only safetensors files are read" in message


def test_a_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / "two.safetensors").unlink()
    message = _refusal(tmp_path)
    assert f"{INDEX}` needs the shard `two.safetensors`, which the folder does not have" in message


def test_a_shard_without_a_tensor_that_the_index_places_there(tmp_path: Path) -> None:
    message = _refusal(sharded(tmp_path, {**SHARD_OF, "lost": "two.safetensors"}))
    assert (
        "places tensor `lost` in `two.safetensors`, but `two.safetensors` does not have" in message
    )


def test_a_tensor_in_two_shards_is_that_of_the_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = sharded(tmp_path)
    stale = {"wte.weight": np.zeros((3, 2), np.float32)}
    save_file({**ARRAYS, **stale}, folder / "two.safetensors")
    with caplog.at_level("WARNING", "gptrs"):
        require_the_model(HfDirectory.open(folder))
    (told,) = [record.getMessage() for record in caplog.records]
    expected = "places 1 tensor in other files than `two.safetensors`, whose copy is ignored: `wte"
    assert expected in told


def test_a_tensor_listed_twice(tmp_path: Path) -> None:
    text = '{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}'
    (sharded(tmp_path) / INDEX).write_text(text)
    assert "the key `a` occurs twice" in _refusal(tmp_path)


def test_shards_are_opened_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = SafetensorsFile.open

    def recorded(path: Path, *, shown_as: Path) -> SafetensorsFile:
        opened.append(shown_as.name)
        return original(path, shown_as=shown_as)

    monkeypatch.setattr(SafetensorsFile, "open", recorded)
    weights = HfDirectory.open(sharded(tmp_path)).weights
    assert weights.names() == tuple(SHARD_OF)
    assert opened == []
    weights.type_of("h.1.bias")
    weights.load("h.0.bias")
    assert opened == ["two.safetensors"]


def test_asking_for_what_is_not_there(tmp_path: Path) -> None:
    weights = HfDirectory.open(sharded(tmp_path)).weights
    with pytest.raises(CheckpointError, match=rf"{INDEX}` has no tensor `x`"):
        weights.type_of("x")
    with pytest.raises(CheckpointError, match=r"has no tensor `x`"):
        weights.locate("x")
    with pytest.raises(CheckpointError, match=r"has no tensor `y`"):
        weights.load("y")


def test_hostile_names_are_escaped_in_messages(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    text = json.dumps({"weight_map": {"\x1b[2J\n" + "x" * 5000: "one.safetensors"}})
    (folder / INDEX).write_text(text)
    message = _refusal(folder)
    assert "\x1b" not in message
    assert len(message) < 700
