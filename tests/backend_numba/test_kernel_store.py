"""Compiled kernels are kept where only their owner can write, and trusted only when whole."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gptrs_backend_numba.kernel_store import KernelStore, open_store


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_directory_is_private(root: Path) -> None:
    store = open_store()
    assert store.folder == root / "numba"
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_directory_open_to_others_is_closed(root: Path) -> None:
    (root / "numba").mkdir(parents=True)
    (root / "numba").chmod(0o777)
    store = open_store()
    assert store.folder is not None
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_link_is_not_used(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.mkdir()
    (root / "numba").symlink_to(tmp_path / "elsewhere")
    assert open_store().folder is None
    assert "must be a directory that belongs to this user" in caplog.text


def test_a_file_in_the_way_is_only_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.write_text("")
    store = open_store()
    assert store.folder is None
    assert len(caplog.records) == 1
    store.save("key", b"code")
    assert store.load("key") is None


def test_entries_come_back_and_leave_no_litter(root: Path) -> None:
    store = open_store()
    assert store.load("key") is None
    store.save("key", b"code")
    store.save("key", b"newer code")
    assert store.load("key") == b"newer code"
    assert [path.name for path in (root / "numba").iterdir()] == ["key"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "replaced"])
def test_a_damaged_entry_counts_as_absent(
    damage: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
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
    store = open_store()
    store.save("key", b"code")
    os.rename(root / "numba" / "key", tmp_path / "key")
    (root / "numba" / "key").symlink_to(tmp_path / "key")
    assert store.load("key") is None


def test_a_full_disk_is_only_a_warning(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    store = open_store()
    monkeypatch.setattr(os, "fsync", refuse)
    store.save("key", b"code")
    assert "No space left on device" in caplog.text
    assert list((root / "numba").iterdir()) == []


def test_without_a_folder_nothing_is_kept() -> None:
    store = KernelStore(None)
    store.save("key", b"code")
    assert store.load("key") is None


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from gptrs_backend_numba.kernels.compiled import compiled
kernel = compiled("def kernel(a, b):\\n    return a * b + 1\\n")
print(kernel(6, 7))
"""


COLLISION = """
import sys
from gptrs_backend_numba.kernels.compiled import compiled, compiled_task
def source(body):
    return f"def kernel(a, b, c, geometry, task):\\n    return {body}\\n"
addresses = [compiled_task(source(body)) for body in sys.argv[1:]]
assert [compiled_task(source(body)) for body in sys.argv[1:]] == addresses, addresses
print(*(compiled(source(body))(6, 7, 8, 9, 10) for body in sys.argv[1:]))
"""


def test_kernels_stored_by_different_processes_keep_apart(root: Path) -> None:
    runs = [["a * b"], ["a - b"], ["a * b", "a - b"]]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", COLLISION, *bodies],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for bodies in runs
    ]
    assert outputs == [["42"], ["-1"], ["42", "-1"]]


def test_a_second_process_finds_what_the_first_compiled(root: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert "compiling kernels for this machine" in outputs[0][0]
    assert outputs[0][1:] == outputs[1] == ["43"]
    (entry,) = (root / "numba").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
