"""Nothing outside the model folder is opened: links, shard names, and an audit of a real load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from checkpoint.model_folders import ARRAYS, INDEX, SHARD_OF, sharded, single, write_json
from gptrs.errors import ModelError
from gptrs_runtime.sources.hf_directory import HfDirectory

AUDITED_LOAD = """
import json, sys
from gptrs_runtime.sources.hf_directory import HfDirectory
import gptrs_runtime.sources.byte_bpe_files, gptrs_runtime.sources.gguf_metadata
from gptrs.checkpoint.parameter_ids import base_param_id
from gptrs.errors import GptrsError
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
try:
    directory = HfDirectory.open(sys.argv[1])
    directory.read_bytes("tokenizer.json")
    directory.read_json("tokenizer_config.json")
    weights = directory.weights
    for name in weights.names():
        weights.load(name)
    outcome = "read"
except GptrsError as error:
    outcome = type(error).__name__
json.dump([outcome, opened], sys.stdout)
"""


def _audited(folder: Path) -> tuple[str, list[Path]]:
    """How a load of everything in the folder ended, and the files it opened on the way."""
    command = [sys.executable, "-c", AUDITED_LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    outcome, opened = json.loads(done.stdout)
    return outcome, [Path(path) for path in opened]


def _cached(tmp_path: Path) -> tuple[Path, Path]:
    """A snapshot folder of a hub cache whose files are links, and the blobs that they lead to."""
    entry = tmp_path / "models--some--name"
    snapshot, blobs = entry / "snapshots" / "abc", entry / "blobs"
    snapshot.mkdir(parents=True)
    sharded(blobs)
    for number, file in enumerate(list(blobs.iterdir())):
        blob = file.rename(blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot, blobs


@pytest.mark.parametrize(("make", "files"), [(single, 4), (sharded, 6)])
def test_a_load_opens_files_of_the_folder_only(
    tmp_path: Path, make: Callable[[Path], Path], files: int
) -> None:
    folder = make(tmp_path / "m")
    write_json(folder / "tokenizer.json", {})
    write_json(folder / "tokenizer_config.json", {})
    outcome, opened = _audited(folder)
    assert outcome == "read"
    assert {path.parent for path in opened} == {folder}
    assert len(opened) == files


def test_a_snapshot_of_the_hub_cache_opens_its_blobs_only(tmp_path: Path) -> None:
    snapshot, blobs = _cached(tmp_path)
    outcome, opened = _audited(snapshot)
    assert outcome == "read"
    assert {path.parent for path in opened} == {blobs}


def _outside_shard(folder: Path) -> None:
    sharded(folder, {**SHARD_OF, "h.0.bias": "../secret.safetensors"})


def _absolute_shard(folder: Path) -> None:
    sharded(folder, {**SHARD_OF, "h.0.bias": str(folder.parent / "secret.safetensors")})


def _linked(name: str, make: Callable[[Path], Path] = single) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        make(folder)
        (folder / name).unlink(missing_ok=True)
        kind = "secret.safetensors" if name.endswith(".safetensors") else "secret.json"
        (folder / name).symlink_to(f"../{kind}")

    return build


def _linked_through_a_folder(folder: Path) -> None:
    single(folder)
    (folder / "sub").symlink_to("..")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("sub/secret.json")


def _device_shard(folder: Path) -> None:
    sharded(folder)
    (folder / "two.safetensors").unlink()
    (folder / "two.safetensors").symlink_to("/dev/zero")


def _pipe_shard(folder: Path) -> None:
    sharded(folder)
    (folder / "two.safetensors").unlink()
    os.mkfifo(folder / "two.safetensors")


ATTACKS = {
    "device for a shard": _device_shard,
    "pipe for a shard": _pipe_shard,
    "shard outside": _outside_shard,
    "absolute shard": _absolute_shard,
    "linked config": _linked("config.json"),
    "linked generation config": _linked("generation_config.json"),
    "linked tokenizer": _linked("tokenizer.json"),
    "linked tokenizer config": _linked("tokenizer_config.json"),
    "linked weights": _linked("model.safetensors"),
    "linked index": _linked(INDEX, sharded),
    "linked shard": _linked("two.safetensors", sharded),
    "link through a folder": _linked_through_a_folder,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attacks_open_nothing_outside(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    save_file(ARRAYS, tmp_path / "secret.safetensors")
    weight_map = {"weight_map": SHARD_OF}
    write_json(tmp_path / "secret.json", {"model_type": "stolen", **weight_map})
    folder = tmp_path / "m"
    attack(folder)
    outcome, opened = _audited(folder)
    assert outcome in ("ModelError", "CheckpointError")
    assert all(path.parent == folder for path in opened)


def test_the_error_of_a_link_says_where_it_leads(tmp_path: Path) -> None:
    write_json(tmp_path / "secret.json", {})
    (single(tmp_path / "m") / "config.json").unlink()
    (tmp_path / "m" / "config.json").symlink_to("../secret.json")
    with pytest.raises(ModelError) as caught:
        HfDirectory.open(tmp_path / "m")
    assert f"is a link to `{tmp_path / 'secret.json'}`: files outside" in str(caught.value)
    assert "copy the file into the folder if you trust it" in str(caught.value)


def test_links_within_the_folder_and_to_the_folder_are_followed(tmp_path: Path) -> None:
    folder = single(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "model.safetensors").symlink_to("weights.safetensors")
    (tmp_path / "link").symlink_to(folder)
    weights = HfDirectory.open(tmp_path / "link").weights
    assert weights.load("h.0.bias").tolist() == [1, 2]
    assert weights.files == ("model.safetensors",)


def test_blobs_of_another_cache_entry_are_outside(tmp_path: Path) -> None:
    snapshot, _ = _cached(tmp_path)
    other = tmp_path / "models--other" / "blobs"
    write_json(single(other) / "config.json", {"model_type": "other"})
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../models--other/blobs/config.json")
    with pytest.raises(ModelError, match="outside the model folder are never opened"):
        HfDirectory.open(snapshot)


def test_a_blobs_folder_next_to_an_ordinary_folder_is_outside(tmp_path: Path) -> None:
    single(tmp_path / "blobs")
    folder = single(tmp_path / "some" / "model")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("../../blobs/config.json")
    with pytest.raises(ModelError, match="outside the model folder"):
        HfDirectory.open(folder)


def test_a_broken_link(tmp_path: Path) -> None:
    folder = single(tmp_path)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("absent.json")
    with pytest.raises(ModelError, match=r"absent.json`, which does not exist; download"):
        HfDirectory.open(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_and_folders_are_refused_at_once(tmp_path: Path, name: str) -> None:
    folder = single(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match="is a device, pipe or socket"):
        _ = HfDirectory.open(folder).weights
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ModelError, match="is a folder, a regular file is needed"):
        _ = HfDirectory.open(folder).weights


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "sub/x", "", ".."])
def test_other_files_are_asked_for_by_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="is not a plain file name"):
        HfDirectory.open(single(tmp_path)).has_file(name)
