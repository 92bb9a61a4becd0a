"""The folder of an execution dump, and the plain files in it; docs/dumps.md shows the layout."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import GptrsError, UsageError
from gptrs.quoting import quoted
from gptrs_observe.dump_records import json_text

MARKER = "gptrs-dump.json"
"""The file that marks a folder as a dump."""
VERSION = 1
"""The version of the layout."""

_MARK = json_text({"format": "gptrs-dump", "version": VERSION}).encode()
_PROGRAM = re.compile(r"program-([0-9]{6,12})-.*", re.DOTALL)
_MAX_SLUG = 40
_CHOOSE = "name a new or an empty folder, or that of an earlier dump"


class DumpFolder:
    """A folder for dumps, made if there is none; several dumps may write to it at once.

    UsageError for a folder that holds anything but an earlier dump; GptrsError for what the system
    refuses, here and in every method.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._reported():
            self._root = self.path.absolute()  # the program may change its directory
            if self._root.exists() and not self._root.is_dir():
                raise UsageError(
                    f"a dump needs a folder, {quoted(str(path), 200)} is a file", hint=_CHOOSE
                )
            self._root.parent.mkdir(parents=True, exist_ok=True)
            made = not self._root.exists()
            self._root.mkdir(mode=0o700, exist_ok=True)  # programs may hold private literals
            try:
                self._claim()
            except OSError:
                if made:
                    with suppress(OSError):  # another process may have begun a dump there
                        self._root.rmdir()
                raise

    def new_program(self, origin: str) -> tuple[int, str]:
        """Make the folder of a program; return its number, larger than any before, and its name."""
        with self._reported(), (self._root / MARKER).open("rb") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)  # one process at a time takes a number
            number = 1 + max(map(_number_of, os.listdir(self._root)), default=-1)
            name = f"program-{number:06}-{_slug(origin)}"
            (self._root / name).mkdir()
        return number, name

    def write(self, folder: str, name: str, text: str) -> None:
        """Write the file `name` of the program folder `folder`, whole or not at all."""
        path = self._root / folder / name
        with self._reported(folder, name):
            try:
                path.write_text(text, encoding="utf-8", errors="replace")
            except OSError:
                with suppress(OSError):
                    if path.is_file():
                        path.unlink()
                    path.parent.rmdir()  # it stays if it has other files
                raise

    def write_arrays(self, folder: str, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the file `name` of tensors, whole or not at all; CheckpointError if it cannot."""
        write_archive(self._root / folder / name, arrays)

    def append(self, name: str, fields: Mapping[str, object]) -> None:
        """Add a JSON object as a line to the file `name`."""
        line = f"{json.dumps(fields)}\n".encode()
        # One system call for the line, so that those of several processes do not mix.
        with self._reported(name), (self._root / name).open("ab", buffering=0) as file:
            _write_whole(file, line)

    def _claim(self) -> None:
        """Mark an empty folder as a dump; UsageError unless it is empty or one already."""
        shown = quoted(str(self.path), 200)
        empty = not any(self._root.iterdir())
        if not empty and not (self._root / MARKER).exists():
            problem = "is neither empty nor an earlier dump, nothing was written"
            raise UsageError(f"{shown} {problem}", hint=_CHOOSE)
        with (self._root / MARKER).open("a+b", buffering=0) as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)  # another process may be starting a dump here
            marker.seek(0)
            found = marker.read()
            if not found:
                try:
                    _write_whole(marker, _MARK)
                except OSError:
                    (self._root / MARKER).unlink()
                    raise
            elif found != _MARK:
                raise UsageError(f"{shown} is no dump of version {VERSION}", hint=_CHOOSE)

    @contextmanager
    def _reported(self, *inside: str) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError) as problem:
            code = problem.errno if isinstance(problem, OSError) else None
            reason = os.strerror(code) if code else str(problem)
            raise GptrsError(
                f"cannot write the dump {quoted(str(self.path.joinpath(*inside)), 200)}: {reason}",
                hint="make room or name another folder"
                if code in (errno.ENOSPC, errno.EDQUOT)
                else None,
            ) from problem


def _write_whole(file: FileIO, data: bytes) -> None:
    """Write `data` at the end of a file without a buffer, all of it or nothing, with an OSError."""
    written = 0
    try:
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        size = os.fstat(file.fileno()).st_size
        if written and file.tell() == size:  # no other process wrote behind it
            file.truncate(size - written)
        raise


def _number_of(name: str) -> int:
    """Return the number of the program whose folder is called `name`, -1 if it is none."""
    found = _PROGRAM.fullmatch(name)
    return int(found[1]) if found else -1


def _slug(origin: str) -> str:
    """Return `origin` with letters, digits and hyphens only: it holds the name of a function."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", origin)[:_MAX_SLUG].strip("-") or "unnamed"
