"""Compiled kernels are kept where only their owner can write, and trusted only when whole."""

import logging
import os
import re
import stat
import time
from pathlib import Path

import pytest

from gptrs.disk_cache import keep_within
from gptrs.errors import UsageError
from gptrs_backend_numba.codegen.kernel_store import KERNELS, KernelStore, open_store


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_directory_is_private(root: Path) -> None:
    store = open_store("made by a test")
    assert store.folder == root / "numba"
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_directory_open_to_others_is_closed(root: Path) -> None:
    (root / "numba").mkdir(parents=True)
    (root / "numba").chmod(0o777)
    store = open_store("made by a test")
    assert store.folder is not None
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_link_is_not_used(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.mkdir()
    (root / "numba").symlink_to(tmp_path / "elsewhere")
    assert open_store("made by a test").folder is None
    assert "must be a directory that belongs to this user" in caplog.text


def test_a_file_in_the_way_is_only_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.write_text("")
    store = open_store("made by a test")
    assert store.folder is None
    assert len(caplog.records) == 1
    store.save("key", b"code")
    assert store.load("key") is None


def test_entries_come_back_and_leave_no_litter(root: Path) -> None:
    store = open_store("made by a test")
    assert store.load("key") is None
    store.save("key", b"code")
    store.save("key", b"newer code")
    assert store.load("key") == b"newer code"
    assert [path.name for path in (root / "numba").iterdir()] == ["key"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "replaced"])
def test_a_damaged_entry_counts_as_absent(
    damage: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("made by a test")
    store.save("key", bytes(range(200)))
    path = root / "numba" / "key"
    whole = path.read_bytes()
    path.write_bytes(
        {
            "truncated": whole[:-1],
            "flipped": whole[:-20] + bytes([whole[-20] ^ 4]) + whole[-19:],
            "emptied": b"",
            "replaced": b"cos\nsystem\n(S'exit 1'\ntR.",
        }[damage]
    )
    assert store.load("key") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "damaged" in caplog.text
    assert not path.exists()


def test_a_linked_entry_is_not_read(root: Path, tmp_path: Path) -> None:
    store = open_store("made by a test")
    store.save("key", b"code")
    os.rename(root / "numba" / "key", tmp_path / "key")
    (root / "numba" / "key").symlink_to(tmp_path / "key")
    assert store.load("key") is None


def test_a_full_disk_is_only_a_warning(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    store = open_store("made by a test")
    monkeypatch.setattr(os, "replace", refuse)
    store.save("key", b"code")
    assert "No space left on device" in caplog.text
    assert list((root / "numba").iterdir()) == []


def test_without_a_folder_nothing_is_kept() -> None:
    store = KernelStore(None, "made by a test", 1 << 20)
    store.save("key", b"code")
    assert store.load("key") is None


A, B, C = ("0" * 39 + digit for digit in "abc")


def test_entries_that_changed_places_are_misses(root: Path) -> None:
    store = open_store("made by a test")
    for key in (A, B):
        store.save(key, key.encode())
    swap(root / "numba" / A, root / "numba" / B)
    assert store.load(A) is None
    assert store.load(B) is None
    store.save(A, b"again")
    assert store.load(A) == b"again"


def swap(one: Path, other: Path) -> None:
    aside = one.rename(one.with_name("aside"))
    other.rename(one)
    aside.rename(other)


def test_every_flipped_bit_is_noticed(root: Path) -> None:
    store = open_store("made by a test")
    whole = KERNELS.encode(A, "made by a test", b"code")
    for position in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        (root / "numba" / A).write_bytes(damaged)
        assert store.load(A) is None, position


def test_many_damaged_entries_are_one_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store("made by a test")
    for key in (A, B, C):
        (root / "numba" / key).write_bytes(b"nothing good")
        assert store.load(key) is None
    assert len(caplog.records) == 1


def test_an_entry_that_others_may_write_to_is_refused(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("made by a test")
    store.save(A, b"code")
    (root / "numba" / A).chmod(0o666)
    assert store.load(A) is None
    assert "other users may write to it" in caplog.text
    store.save(A, b"code")
    assert store.load(A) == b"code"


def test_an_entry_of_another_user_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("made by a test")
    store.save(A, b"code")
    if os.geteuid() == 0:  # whose files everybody trusts
        os.chown(root / "numba" / A, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 123456)
    assert store.load(A) is None
    assert "it belongs to another user" in caplog.text


def test_a_pipe_in_the_place_of_an_entry_does_not_block(root: Path) -> None:
    store = open_store("made by a test")
    os.mkfifo(root / "numba" / A, 0o600)
    assert store.load(A) is None


def test_a_disk_that_is_full_is_tried_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    store = open_store("made by a test")
    monkeypatch.setattr(os, "replace", refuse)
    for key in (A, B, C):
        store.save(key, b"code")
    assert len(caplog.records) == 1
    assert not store.keeps
    assert list((root / "numba").iterdir()) == []


def test_entries_unused_for_longest_make_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(KERNELS.encode(A, "made by a test", bytes(1000)))
    monkeypatch.setenv("GPTRS_CACHE_BYTES", str(2 * size))
    store = open_store("made by a test")
    for age, key in ((200, A), (100, B)):
        store.save(key, bytes(1000))
        os.utime(root / "numba" / key, (time.time() - age,) * 2)
    assert store.load(A) is not None, "which makes it the one used last"
    store.save(C, bytes(1000))
    assert store.load(B) is None
    assert store.load(A) == store.load(C) == bytes(1000)


def test_the_folder_is_not_listed_for_every_entry(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []

    def listing(folder: Path, names: re.Pattern[str], budget: int) -> int:
        free = keep_within(folder, names, budget)
        listed.append(free)
        return free

    monkeypatch.setattr("gptrs.disk_cache.keep_within", listing)
    monkeypatch.setenv("GPTRS_CACHE_BYTES", str(1 << 20))
    store = open_store("made by a test")
    for number in range(200):
        store.save(f"{number:040x}", bytes(10_000))
    assert min(listed) >= 0
    assert len(listed) < 100
    held = sum(path.stat().st_size for path in (root / "numba").glob("[0-9a-f]*"))
    assert held < (1 << 20) * 1.02 + 10_000


def test_a_budget_of_nothing_keeps_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_CACHE_BYTES", "0")
    store = open_store("made by a test")
    store.save(A, b"code")
    assert list((root / "numba").iterdir()) == []


def test_a_budget_is_a_number(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_CACHE_BYTES", "1G")
    with pytest.raises(UsageError, match="`GPTRS_CACHE_BYTES` must be a number of bytes"):
        open_store("made by a test")


def test_what_a_killed_writer_left_goes_and_what_is_not_ours_stays(root: Path) -> None:
    store = open_store("made by a test")
    store.save(A, b"code")
    folder = root / "numba"
    for name, age in ((".new-old", 7200), (".new-young", 0), ("notes.txt", 7200)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - age,) * 2)
    keep_within(folder, KERNELS.names, 1 << 20)
    assert {path.name for path in folder.iterdir()} == {A, ".new-young", "notes.txt"}
    assert store.clear().count == 1
    assert {path.name for path in folder.iterdir()} == {".new-young", "notes.txt"}


def test_entries_know_which_version_made_them(root: Path) -> None:
    open_store("old").save(A, b"code")
    open_store("new").save(B, b"code")
    (root / "numba" / C).write_bytes(b"gptrs kernel 1\n" + bytes(100))
    folder = root / "numba"
    store = open_store("new")
    versions = {version.name: version for version in store.report().parts}
    assert versions["new"].current
    assert [version.current for version in versions.values()] == [True, False, False]
    assert versions["old"].entries.count == 1
    assert store.clear(stale_only=True).count == 2
    assert [path.name for path in folder.iterdir()] == [B]
