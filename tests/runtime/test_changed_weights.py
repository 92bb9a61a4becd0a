"""A model whose file of weights is written to while it is in use gives an error, never a text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gptrs
from checkpoint.model_folders import sharded
from gptrs.errors import CheckpointError
from gptrs_runtime.running_model import RunningModel
from gptrs_runtime.sources.hf_directory import HfDirectory
from runtime.tiny_gpt2 import save_tiny_gpt2, train_tokenizer


def cut_in_page(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)  # reads of the last page give zeros, not a signal


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def write_into(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # the clock of a file system is coarse


@pytest.mark.parametrize("change", [cut_in_page, grow, write_into])
def test_the_next_step_is_refused(tmp_path, change: Callable[[Path], None]) -> None:
    folder = save_tiny_gpt2(tmp_path / "model", n_positions=128)
    (path,) = folder.glob("*.safetensors")
    model = gptrs.load_model(folder)
    stream = gptrs.stream(model, [1, 2, 3], max_tokens=100, ignore_eos=True)
    next(iter(stream))
    change(path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors` was changed while"):
        list(stream)
    with pytest.raises(CheckpointError, match="was changed while the model was in use"):
        model.forward(np.array([[1, 2]]))


def test_a_file_that_is_replaced_by_renaming_does_no_harm(tmp_path) -> None:
    folder = save_tiny_gpt2(tmp_path / "model", n_positions=128)
    (path,) = folder.glob("*.safetensors")
    model = gptrs.load_model(folder)
    before = model.forward(np.array([[1, 2]]))
    new = tmp_path / "new"
    new.write_bytes(b"another")
    new.rename(path)
    assert model.forward(np.array([[1, 2]])).tobytes() == before.tobytes()


class Changed:
    """Weights whose file was written to."""

    def require_unchanged(self) -> None:
        raise CheckpointError("it was changed")


class Anything:
    """A module that has each method of each capability."""

    def __getattr__(self, name: str) -> object:
        return lambda: name


@pytest.mark.parametrize(
    "method", ["step", "greedy_steps", "embed_images", "embed_texts", "scale_and_bias", "write"]
)
def test_methods_that_compute_are_refused(method: str) -> None:
    running = RunningModel(Anything(), "gpt2", Changed(), {})
    with pytest.raises(CheckpointError, match="it was changed"):
        getattr(running, method)()
    assert running.new_buffers() == "new_buffers", "it reads no weight"


def replace_folder(folder: Path) -> None:
    folder.rename(folder.with_name("old"))
    save_tiny_gpt2(folder, n_positions=128)


def write_settings(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")


def replace_tokenizer(folder: Path) -> None:
    new = folder / "new"
    new.write_bytes((folder / "tokenizer.json").read_bytes())
    new.rename(folder / "tokenizer.json")


@pytest.mark.parametrize(
    "change", [replace_folder, write_settings, replace_tokenizer, shutil.rmtree]
)
def test_a_tokenizer_of_a_folder_that_changed_is_not_read(
    tmp_path, change: Callable[[Path], None]
) -> None:
    folder = save_tiny_gpt2(tmp_path / "model", n_positions=128)
    model = gptrs.load_model(folder)
    change(folder)
    with pytest.raises(CheckpointError, match=r"was changed since the model was loaded.*again$"):
        gptrs.generate(model, "the cat", max_tokens=2)


def test_files_that_are_added_to_a_folder_are_read(tmp_path) -> None:
    folder = save_tiny_gpt2(tmp_path / "model", tokenizer=False)
    model = gptrs.load_model(folder)
    train_tokenizer().save(str(folder / "tokenizer.json"))
    assert gptrs.generate(model, "the cat", max_tokens=2).text


def test_shards_of_a_folder_that_changed_are_not_read(tmp_path) -> None:
    source = HfDirectory.open(sharded(tmp_path / "model"))
    weights = source.weights
    weights.load("wte.weight")
    replace = tmp_path / "model" / "two.safetensors"
    replace.rename(tmp_path / "old")
    replace.write_bytes((tmp_path / "old").read_bytes())
    with pytest.raises(CheckpointError, match=r"two\.safetensors` was changed since"):
        weights.load("h.0.bias")
