"""Weights are recognized in other processes by their file, and no change of it goes unnoticed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gptrs.backend import weight_identity
from gptrs.backend.weight_identity import WeightIdentity, identity_of_computed
from gptrs.checkpoint.param_source import FileSource


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts files that were just written as old."""
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", -1 << 62)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(4, np.float32), "b": np.ones(4, np.float32)}, path)
    return path


def identity(path: Path, name: str = "a") -> WeightIdentity:
    found = FileSource.of_file(path).identity_of(name)
    assert found is not None
    return found


@pytest.mark.usefixtures("settled")
def test_a_weight_is_the_same_wherever_its_file_is_moved(file: Path, tmp_path: Path) -> None:
    before = identity(file)
    (tmp_path / "moved").mkdir()
    assert identity(file) == before
    assert identity(file, "b") != before
    link = tmp_path / "moved" / "link.safetensors"
    link.symlink_to(file)
    assert identity(link) == before


@pytest.mark.usefixtures("settled")
def test_a_changed_file_has_other_weights_whatever_its_times_say(file: Path) -> None:
    source = FileSource.of_file(file)
    before, status = source.identity_of("a"), file.stat()
    assert before is not None
    assert before.unchanged
    with file.open("r+b") as content:
        content.seek(-1, os.SEEK_END)
        content.write(b"\x7f")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not before.unchanged
    assert identity(file) != before


def test_a_file_that_was_just_written_may_change_unnoticed(file: Path) -> None:
    assert FileSource.of_file(file).identity_of("a") is None


@pytest.mark.usefixtures("settled")
def test_what_is_computed_of_weights_depends_on_them_and_on_the_recipe(file: Path) -> None:
    a, b = identity(file), identity(file, "b")
    made = [a.computed("sum", b), b.computed("sum", a), a.computed("difference", b), a]
    assert len({each.digest for each in made}) == len(made)
    assert a.computed("sum", b) == identity_of_computed("sum", [a, b])
    assert a.computed("sum", b).files == a.files
    assert identity_of_computed("sum", [a, None]) is None
    assert identity_of_computed("constant", []) is None


@pytest.mark.usefixtures("settled")
def test_a_closed_file_cannot_be_known_to_be_unchanged(file: Path) -> None:
    source = FileSource.of_file(file)
    found = source.identity_of("a")
    assert found is not None
    for each in source.open_files():
        each.close()
    assert not found.unchanged
