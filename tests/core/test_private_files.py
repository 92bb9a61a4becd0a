"""Files of a cache: whole or absent, read only if nobody else can have written them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from gptrs.disk_cache import Entries, files_in, keep_within, make_room, remove
from gptrs.errors import ExecutionError
from gptrs.private_files import read_own, whole_file, write_all

NAMES = re.compile(r"[a-z]")


def save(path: Path, data: bytes) -> None:
    with whole_file(path) as descriptor:
        write_all(descriptor, data)


def save_half(path: Path) -> None:
    with whole_file(path) as descriptor:
        write_all(descriptor, b"sec")
        raise KeyboardInterrupt


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    save(tmp_path / "a", b"first")
    with pytest.raises(KeyboardInterrupt):
        save_half(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert read_own(tmp_path / "a", 5) == b"first"
    assert read_own(tmp_path / "a", 4) is None, "it is longer"
    (tmp_path / "a").chmod(0o666)
    with pytest.raises(PermissionError, match="other users may write"):
        read_own(tmp_path / "a", 5)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a", 0o600)
    assert read_own(tmp_path / "a", 5) is None


def test_what_the_system_took_in_parts_is_written_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    save(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_the_earliest_make_room(tmp_path: Path) -> None:
    now = time.time()
    for age, name in enumerate("abcd"):
        save(tmp_path / name, bytes(10))
        os.utime(tmp_path / name, (now - age, now - age))
    save(tmp_path / "notes", bytes(100))
    assert keep_within(tmp_path, NAMES, 30) == 0
    assert {found.path.name for found in files_in(tmp_path, NAMES)} == set("abc")
    free = make_room(files_in(tmp_path, NAMES), 30, need=30, before=now - 0.5)
    assert free == 20, "`a` was used since"
    assert remove(files_in(tmp_path, NAMES)) == Entries(1, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_file_that_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    save(tmp_path / "a", b"")
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ExecutionError, match=r"cannot remove `.*a`: Permission denied"):
        remove(files_in(tmp_path, NAMES))
