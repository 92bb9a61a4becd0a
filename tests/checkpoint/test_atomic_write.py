"""A file is written whole or not at all: after an error, a full disk, a kill at any system call."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpoint.killed_writers import require_swept
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import CheckpointError, UsageError

OLD, NEW = b"old" * 1000, b"new" * 2000

KILLED_WRITER = """
import os, signal, sys
from gptrs.checkpoint.files import atomic_write

path, fatal = sys.argv[1], int(sys.argv[2])
calls = 0

def deadly(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

names = ("open", "fsync", "fchmod", "replace", "unlink", "close", "write", "stat", "listdir")
for name in names:
    setattr(os, name, deadly(getattr(os, name)))
with atomic_write.atomic_file(path) as file:
    file.write(b"new" * 1000)
    file.flush()
    deadly(lambda: None)()
    file.write(b"new" * 1000)
print("done")
"""

FULL_DISK = """
import resource, signal, sys
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import CheckpointError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    with atomic_file(sys.argv[1]) as file:
        file.write(b"new" * 100_000)
except CheckpointError as error:
    print(error)
"""


def _write(path: Path, data: bytes = NEW) -> None:
    with atomic_file(path) as file:
        file.write(data)


def _fail_while_writing(path: Path) -> None:
    with atomic_file(path) as file:
        file.write(NEW)
        raise ZeroDivisionError


@pytest.mark.parametrize("old", [None, OLD], ids=["a new file", "an old file"])
def test_the_file_appears_whole_at_the_end(tmp_path, old):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with atomic_file(path) as file:
        file.write(NEW)
        file.flush()
        assert (path.read_bytes() if path.exists() else None) == old
    assert path.read_bytes() == NEW
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("old", [None, OLD], ids=["a new file", "an old file"])
def test_an_exception_leaves_what_was_there(tmp_path, old):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(ZeroDivisionError):
        _fail_while_writing(path)
    assert os.listdir(tmp_path) == ([] if old is None else ["file"])
    assert old is None or path.read_bytes() == old


@pytest.mark.sample(1)
@pytest.mark.parametrize("old", [None, OLD], ids=["a new file", "an old file"])
def test_a_writer_killed_at_any_call_leaves_the_old_or_the_new_file(tmp_path, old):
    path = tmp_path / "file"
    outcomes = set()
    for fatal in range(1, 40):
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        command = [sys.executable, "-c", KILLED_WRITER, str(path), str(fatal)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.stdout == "done\n":
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = path.read_bytes() if path.exists() else None
        assert found in (old, NEW)
        outcomes.add(found)
        require_swept(tmp_path, {"file"})
    else:
        pytest.fail("the writer never came to its end")
    assert fatal > 5
    assert outcomes == {old, NEW}
    assert os.listdir(tmp_path) == ["file"]


def test_the_next_write_removes_what_killed_writers_left(tmp_path):
    partial, folder = tmp_path / ".gptrs-0.partial", tmp_path / ".gptrs-1.partial"
    partial.write_bytes(OLD)
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_bytes(OLD)
    _write(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_the_next_write_leaves_what_is_being_written(tmp_path):
    with atomic_file(tmp_path / "one") as file:
        _write(tmp_path / "two")
        file.write(NEW)
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_a_full_disk_is_an_error_that_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"cannot write `{path}`: File too large\n", done.stderr
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["file"]


def test_concurrent_writers_each_leave_a_whole_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 50_000 for number in range(4)]
    failures: list[BaseException] = []

    def work(data: bytes) -> None:
        try:
            for _ in range(25):
                _write(path, data)
                assert path.read_bytes() in contents
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_of_the_old_file_stay_and_a_new_one_gets_the_usual_ones(tmp_path):
    private, fresh, usual = tmp_path / "private", tmp_path / "fresh", tmp_path / "usual"
    private.write_bytes(OLD)
    private.chmod(0o600)
    usual.write_bytes(OLD)
    _write(private)
    _write(fresh)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert fresh.stat().st_mode == usual.stat().st_mode


def test_a_link_stays_and_leads_to_the_new_content(tmp_path):
    target = tmp_path / "folder" / "target"
    target.parent.mkdir()
    target.write_bytes(OLD)
    link = tmp_path / "link"
    link.symlink_to(target)
    _write(link)
    assert link.is_symlink()
    assert target.read_bytes() == NEW


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    _write(path, OLD)
    _write(path)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "it is a folder, a regular file is needed"),
        ("pipe", "it is a device, pipe or socket, a regular file is needed"),
        ("missing/file", "No such file or directory"),
        ("plain/file", "Not a directory"),
        ("nul\0", "embedded null"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=reason) as caught, atomic_file(tmp_path / name):
        pytest.fail("the scope was entered")
    assert str(caught.value).startswith("cannot write `")


def test_the_caller_chooses_the_error(tmp_path):
    with pytest.raises(UsageError), atomic_file(tmp_path, UsageError):
        pytest.fail("the scope was entered")
