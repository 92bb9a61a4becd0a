"""Weights are told apart by every byte, and read only once for it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.backend import weight_identity
from gptrs.checkpoint.param_source import FileSource
from gptrs.disk_cache import DiskCache
from gptrs.errors import CheckpointError
from gptrs_runtime import content_digest
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.sources.hf_directory import HfDirectory

WEIGHTS = {
    "embedding": np.arange(60_000, dtype=np.float32).reshape(300, 200),
    "norm": np.ones(200, np.float16),
}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    """The folder of kept digests; files count as settled at once."""
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", 0)
    return tmp_path / "cache" / content_digest.FOLDER


@pytest.fixture
def path(tmp_path) -> Path:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def digest(path: Path) -> bytes:
    return weights_digest(FileSource.of_file(path))


def refuse_to_read(monkeypatch) -> None:
    def parts(self: FileSource, name: str) -> None:
        raise AssertionError(f"{name} is read")

    monkeypatch.setattr(FileSource, "parts", parts)


def test_the_second_time_nothing_is_read(path, monkeypatch):
    first = digest(path)
    refuse_to_read(monkeypatch)
    assert digest(path) == first
    path = path.rename(path.with_name("moved.safetensors"))
    with pytest.raises(AssertionError, match="is read"):  # renaming changes the time of the inode
        digest(path)


@pytest.mark.parametrize("at", [-1, -400 - 4 * 200 * 150])
def test_each_byte_counts_even_with_size_and_time_of_before(path, at):
    first, before = digest(path), path.stat()
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(at, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert weight_identity.file_digest(path.stat()) != weight_identity.file_digest(before)
    assert digest(path) != first


def test_names_types_and_shapes_count(path, tmp_path):
    others = [
        {"embeddinG": WEIGHTS["embedding"], "norm": WEIGHTS["norm"]},
        {**WEIGHTS, "embedding": WEIGHTS["embedding"].reshape(200, 300)},
        {**WEIGHTS, "norm": WEIGHTS["norm"].view(np.int16)},
        {**WEIGHTS, "more": np.zeros(0, np.float32)},
    ]
    found = {digest(path)}
    for number, weights in enumerate(others):
        save_file(weights, tmp_path / f"{number}.safetensors")
        found.add(digest(tmp_path / f"{number}.safetensors"))
    assert len(found) == 1 + len(others)


def test_shards_and_other_sources_have_the_digest_of_one_file(path, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    index: dict[str, str] = {}
    for number, (name, array) in enumerate(WEIGHTS.items(), 1):
        index[name] = f"model-0000{number}-of-00002.safetensors"
        save_file({name: array}, folder / index[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    class Source:
        """Arrays in memory."""

        names = staticmethod(WEIGHTS.keys)
        load = staticmethod(WEIGHTS.__getitem__)
        type_of = FileSource.of_file(path).type_of

    assert weights_digest(HfDirectory.open(folder).weights) == digest(path)
    assert weights_digest(Source()) == digest(path)


def test_a_file_that_changes_while_it_is_used_has_no_digest(path):
    weights = FileSource.of_file(path)
    weights.load("norm")
    time.sleep(0.02)
    save_file(load_file(path), path.with_name("copy"))
    path.write_bytes(path.with_name("copy").read_bytes())
    with pytest.raises(CheckpointError, match="was changed after the model was loaded"):
        weights_digest(weights)


def test_a_file_changed_a_moment_ago_is_read_each_time(path, kept, monkeypatch):
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", 10**12)
    assert digest(path) == digest(path)
    assert not kept.exists()


def test_swapped_digests_are_not_believed(path, kept, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({**WEIGHTS, "norm": np.zeros(200, np.float16)}, other)
    before = digest(path), digest(other)
    one, two = kept.iterdir()
    contents = one.read_bytes(), two.read_bytes()
    two.write_bytes(contents[0])
    one.write_bytes(contents[1])
    assert (digest(path), digest(other)) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "open to others", "link"])
def test_a_digest_that_cannot_be_trusted_is_made_again(path, kept, damage, tmp_path):
    first = digest(path)
    (entry,) = kept.iterdir()
    data = bytearray(entry.read_bytes())
    if damage == "flip":
        data[5] ^= 1
        entry.write_bytes(data)
    elif damage == "cut":
        entry.write_bytes(data[:20])
    elif damage == "open to others":
        entry.chmod(0o666)
    else:
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    assert digest(path) == first


def test_without_a_private_folder_digests_are_made_each_time(path, kept):
    kept.parent.mkdir()
    kept.write_text("a file in its place")
    assert digest(path) == digest(path)


def test_a_forked_child_digests_without_the_workers_of_its_parent(tmp_path, monkeypatch):
    path = tmp_path / "large.safetensors"
    save_file({"w": np.ones(1 << 20, np.float32)}, path)
    nothing = DiskCache(None, content_digest.FORMAT, 0)
    monkeypatch.setattr(content_digest, "kept_digests", lambda: nothing)
    expected = digest(path)  # starts workers
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if digest(path) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
