"""Files of a cache: whole or absent, read only if nobody else can have written them."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

import platformdirs
import pytest

from gptrs.disk_cache import (
    DiskCache,
    Entries,
    EntryFormat,
    files_in,
    keep_within,
    make_room,
    remove,
)
from gptrs.errors import ExecutionError
from gptrs.private_files import (
    private_folder,
    read_own,
    shared_folder,
    whole_file,
    write_all,
)

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


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that was filled, and that this user may read only."""
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "own"))
    folder = private_folder("kernels")
    assert DiskCache(folder, FORMAT, 1000).save("a", b"of the administrator")
    folder.chmod(0o555)
    (folder / "a").chmod(0o444)
    # Root may write everywhere, whatever the mode of a folder.
    real = os.access
    closed = (tmp_path / "shared", folder)
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed and real(path, mode))
    return folder


FORMAT = EntryFormat("kernel", "compiled", 1, NAMES, 1000)


def cache_here() -> DiskCache:
    return DiskCache(private_folder("kernels"), FORMAT, 1000, shared=shared_folder("kernels"))


def test_a_cache_that_was_filled_for_users_is_read_and_what_is_new_is_their_own(
    shared: Path, tmp_path: Path
) -> None:
    cache = cache_here()
    assert cache.folder == tmp_path / "own" / "kernels"
    assert cache.load("a") == b"of the administrator"
    assert cache.save("b", b"of the user")
    assert cache.names() == ["a", "b"]
    assert cache.has("a")
    assert cache_here().load("b") == b"of the user"
    assert [path.name for path in shared.iterdir()] == ["a"]
    (part,) = cache.report().installed
    assert (part.name, part.entries.count) == (f"shared by users in `{shared}`", 1)
    assert cache.clear().count == 1
    assert cache.load("a") == b"of the administrator"


@pytest.mark.parametrize("who", ["group", "others", "above"])
def test_a_cache_that_others_may_write_to_is_not_shared(
    who: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mode = {
        "group": (shared, 0o775), "others": (shared, 0o757), "above": (tmp_path / "shared", 0o757)
    }[who]  # fmt: skip
    place.chmod(mode)
    assert shared_folder("kernels") is None
    place.chmod(mode | stat.S_ISVTX)  # there nobody replaces what is another's
    assert (shared_folder("kernels") is not None) == (who == "above")


def test_a_cache_of_another_user_is_not_shared(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_folder("kernels") == shared
    if os.geteuid() == 0:  # whose files everybody trusts
        os.chown(shared, 12345, -1)
    else:
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert shared_folder("kernels") is None


@pytest.mark.parametrize("change", ["writable", "damaged", "linked"])
def test_an_entry_that_cannot_be_trusted_is_not_read(
    change: str, shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = shared / "a"
    if change == "writable":
        entry.chmod(0o646)
    elif change == "damaged":
        entry.chmod(0o644)
        entry.write_bytes(entry.read_bytes()[:-1] + b"X")
    else:
        shared.chmod(0o755)
        entry.rename(tmp_path / "a")
        entry.symlink_to(tmp_path / "a")
    assert cache_here().load("a") is None
    assert len(caplog.records) == 1
