"""The folder of an execution dump: files whole or not at all, nothing outside it, no link followed.

Everything is opened relative to a descriptor of the folder, entry by entry and without following
links, so that a link in it can neither lead a write elsewhere nor have something else read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import (
    StagedFile,
)
from gptrs.errors import GptrsError, UsageError
from gptrs.quoting import quoted
from gptrs.runtime.observe.dump_records import json_text
from gptrs.strict_json import parse_object

MARKER = "gptrs-dump.json"
"""The file that says of a folder that it is a dump."""
VERSION = 1
"""The version of the layout."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINES = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE = 0o600
_MOST_MARKER_BYTES = 4096
_PROGRAM = re.compile(r"program-([0-9]{6,12})-.*", re.DOTALL)
_MOST_SLUG = 40
_CHOOSE = "name a new or an empty folder, or that of an earlier dump"


class DumpFolder:
    """An open folder for dumps, made if there is none; several dumps may write to it at once.

    UsageError for one that holds anything but an earlier dump, or that is a link; GptrsError for
    what the system refuses, here and in every method.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._reported():
            self._descriptor = _open_folder(self.path)
        try:
            with self._reported(), self._alone():
                self._claim()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the folder, which must not be used after that."""
        os.close(self._descriptor)

    def new_program(self, origin: str) -> tuple[int, str]:
        """Make the folder of a program; its number, larger than any before, and its name."""
        with self._reported(), self._alone():
            number = 1 + max(map(_number_of, os.listdir(self._descriptor)), default=-1)
            name = f"program-{number:06}-{_slug(origin)}"
            os.mkdir(name, 0o700, dir_fd=self._descriptor)
        return number, name

    def write(self, folder: str, name: str, text: str) -> None:
        """Write the file `name` of `folder`, which was made here, in place of an earlier one."""
        with self._reported(folder, name):
            self._write(folder, name, text)

    def append(self, name: str, fields: Mapping[str, object]) -> None:
        """Add an object as a line to the file `name`, whole, whoever else adds lines to it."""
        line = f"{json.dumps(fields)}\n".encode()
        with self._reported(name):
            descriptor = os.open(name, _LINES, _PRIVATE, dir_fd=self._descriptor)
            try:
                _append(descriptor, line)
            finally:
                os.close(descriptor)

    def _write(self, folder: str, name: str, text: str) -> None:
        descriptor = os.open(folder, _FOLDER, dir_fd=self._descriptor)
        try:
            with StagedFile(descriptor, name) as staged:
                staged.file.write(text.encode("utf-8", "replace"))
                staged.publish(_PRIVATE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _claim(self) -> None:
        """Mark an empty folder as a dump; UsageError unless it is empty or one already."""
        entries = os.listdir(self._descriptor)
        if not entries:
            self._write(".", MARKER, json_text({"format": "gptrs-dump", "version": VERSION}))
            return
        shown = quoted(str(self.path), 200)
        if MARKER not in entries:
            raise UsageError(
                f"{shown} is neither empty nor an earlier dump, nothing was written", hint=_CHOOSE
            )
        marker = parse_object(self._read_marker(), MARKER, UsageError, hint=_CHOOSE)
        if marker.get("format") != "gptrs-dump" or marker.get("version") != VERSION:
            raise UsageError(
                f"{shown} is no dump of version {VERSION}, nothing was written", hint=_CHOOSE
            )

    def _read_marker(self) -> bytes:
        descriptor = os.open(MARKER, _READ, dir_fd=self._descriptor)
        try:
            return os.read(descriptor, _MOST_MARKER_BYTES)
        finally:
            os.close(descriptor)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Scope that others, in this process or another, do not enter meanwhile."""
        own = os.open(".", _FOLDER, dir_fd=self._descriptor)
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            yield
        finally:
            os.close(own)

    @contextmanager
    def _reported(self, *inside: str) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError) as problem:
            reason = _reason(problem)
            raise GptrsError(
                f"cannot write the dump {quoted(str(self.path.joinpath(*inside)), 200)}: {reason}",
                hint="make room or name another folder" if _is_full(problem) else None,
            ) from problem


def _open_folder(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        mode = os.stat(path, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            what = "a link, which is not followed" if stat.S_ISLNK(mode) else "no folder"
            shown = quoted(str(path), 200)
            raise UsageError(f"a dump needs a folder, {shown} is {what}", hint=_CHOOSE) from None
    return os.open(path, _FOLDER)


def _number_of(name: str) -> int:
    """The number of the program whose folder is called `name`, -1 if it is none."""
    found = _PROGRAM.fullmatch(name)
    return int(found[1]) if found else -1


def _slug(origin: str) -> str:
    """`origin` with letters, digits and hyphens only: it comes from the name of a function."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", origin)[:_MOST_SLUG].strip("-") or "unnamed"


def _append(descriptor: int, line: bytes) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise OSError(errno.EPERM, "it is no file of its own")
    if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
        line = b"\n" + line  # a disk that was full cut the last one short
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(problem: OSError | ValueError) -> str:
    if not isinstance(problem, OSError):
        return str(problem)
    if problem.errno == errno.ELOOP:
        return "it is a link, which is not followed"
    return problem.strerror or str(problem)


def _is_full(problem: OSError | ValueError) -> bool:
    return isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)
