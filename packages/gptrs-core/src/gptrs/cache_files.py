"""The files of a cache: what they take, a budget for them, their removal."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gptrs.errors import ExecutionError
from gptrs.private_files import remove_abandoned
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Entries:
    """A number of entries and the bytes that they take on disk."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: Entries) -> Entries:
        return Entries(self.count + other.count, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class Found:
    """A file that holds an entry by its name, its size in bytes, and when it was used last."""

    path: Path
    nbytes: int
    used: float


def files_in(folder: Path, names: re.Pattern[str]) -> Iterator[Found]:
    """Return the files in `folder` whose whole names match, FileNotFoundError if it is missing."""
    with os.scandir(folder) as files:
        for file in files:
            if not names.fullmatch(file.name):
                continue
            with suppress(FileNotFoundError):  # another process was faster
                status = file.stat(follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    yield Found(Path(file.path), status.st_size, status.st_mtime)


def keep_within(folder: Path, names: re.Pattern[str], budget: int) -> int:
    """Remove the entries unused for longest until the others fit, and what killed writers left.

    Returns how many of the bytes of the budget are free.
    """
    free = make_room(files_in(folder, names), budget)
    remove_abandoned(folder)
    return free


def make_room(files: Iterable[Found], budget: int, need: int = 0, before: float = math.inf) -> int:
    """Remove files last used before a time, the earliest first, until `need` bytes are free.

    Returns how many bytes of the budget are free.
    """
    in_order = sorted(files, key=lambda found: found.used)
    free = budget - sum(found.nbytes for found in in_order)
    for found in in_order:
        if free >= need or found.used >= before:
            break
        found.path.unlink(missing_ok=True)
        free += found.nbytes
    return free


def remove(files: Iterable[Found]) -> Entries:
    """Remove files and return what they took; ExecutionError if one cannot be removed."""
    removed = Entries()
    for found in files:
        try:
            found.path.unlink(missing_ok=True)
        except OSError as error:
            raise ExecutionError(
                f"cannot remove `{found.path}`: {error.strerror}",
                hint="make the directory writable, or set `GPTRS_CACHE_DIR` to another one",
            ) from error
        removed += Entries(1, found.nbytes)
    return removed
