"""Caches on disk: checked entries in a private folder, a budget for them, reports, removal."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gptrs.errors import ExecutionError, UsageError
from gptrs.private_files import (
    ELSEWHERE,
    OPEN_FLAGS,
    SEAL_BYTES,
    read_own,
    remove_abandoned,
    sealed,
    unsealed,
    whole_file,
    write_all,
)

VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable that limits the bytes of compiled code on disk; 0 keeps nothing."""
DEFAULT_BUDGET = 512 << 20
"""The limit in bytes if the variable is not set."""
_LOG = logging.getLogger("gptrs")
_LONGEST_VERSION = 512
_UNKNOWN = "another version of gptrs, or damaged"


class Entries(Struct, frozen=True):
    """A count of entries and their total size on disk in bytes."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: Entries) -> Entries:
        return Entries(self.count + other.count, self.nbytes + other.nbytes)


class CachePart(Struct, frozen=True):
    """The entries of one origin."""

    name: str
    """For kernels, the compiler and machine in readable form; for weights, the path of their file
    at the time of writing; empty if origins are not distinguished.
    """
    current: bool
    """Whether this process would use them: their version is current and their file unchanged."""
    entries: Entries


class CacheReport(Struct, frozen=True):
    """The contents of a cache, as `gptrs cache` reports them."""

    folder: Path | None
    """None if nothing can be cached and each process starts from scratch."""
    budget_bytes: int
    """The size limit in bytes; the least recently used entries are evicted first."""
    parts: Sequence[CachePart]
    installed: Sequence[CachePart] = ()
    """Parts installed with the backend or kept in a folder that users share. They do not count
    towards the budget and are never removed here. The name of a stale part says why it is stale."""

    @property
    def entries(self) -> Entries:
        """Return the total over all parts."""
        return sum((part.entries for part in self.parts), Entries())

    @property
    def stale(self) -> Entries:
        """Return the total over the parts that this process would not use."""
        return sum((part.entries for part in self.parts if not part.current), Entries())


class DamagedEntryError(Exception):
    """Raised for a file that is not a complete entry; the message says why."""


class EntryFormat(Struct, frozen=True):
    """The file format of a cache's entries, and the words that messages use for them."""

    noun: str
    """Noun for one entry, such as `kernel`."""
    made: str
    """Participle for making one, such as `compiled`."""
    number: int
    """Version of the content's format."""
    names: re.Pattern[str]
    """Pattern of the file names; other files in the folder are ignored."""
    largest: int
    """Largest content in bytes that is written or read."""
    level: int = logging.WARNING
    """Log level for entries that cannot be used or kept."""

    @property
    def magic(self) -> bytes:
        """The first line of each file."""
        return f"gptrs {self.noun} {self.number}\n".encode()

    @property
    def largest_file(self) -> int:
        """Size in bytes of a file with the largest content."""
        return len(self.magic) + SEAL_BYTES + _LONGEST_VERSION + self.largest

    def encode(self, name: str, version: str, body: bytes) -> bytes:
        """Return the bytes of the file `name`: a seal, the version, the content."""
        # The seal covers the name: an entry that was copied under another name is another kernel.
        return self.magic + sealed(name, version.encode() + b"\n" + body)

    def decode(self, name: str, data: bytes) -> tuple[str, bytes]:
        """Return the version and the content in the file `name`.

        Raise DamagedEntryError unless the file is complete and was written under this name.
        """
        magic = self.magic
        content = unsealed(name, data[len(magic) :]) if data.startswith(magic) else None
        if content is None:
            raise DamagedEntryError(f"it is damaged, or belongs to another {self.noun}")
        version, _, body = content.partition(b"\n")
        return version.decode(), body

    def version_of(self, path: Path) -> str | None:
        """Return the version that a file states, unchecked; None without one."""
        # Reads the head only: a report does this for every file.
        start = len(self.magic) + SEAL_BYTES
        try:
            with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
                head = file.read(start + _LONGEST_VERSION)
        except OSError:
            return None
        version, end, _ = head[start:].partition(b"\n")
        return version.decode(errors="replace") if end and head.startswith(self.magic) else None


class DiskCache:
    """Maps names to contents in `folder`; without a folder nothing is found or kept.

    Entries are code, or decide which code runs: `folder` must belong to the user and be closed to
    others, see `private_folder`. An entry that is damaged, or that another user may have written,
    counts as absent and is logged once per process. After the first entry that cannot be written,
    which is logged, no more are written. Disk failures never raise.

    `version` identifies what makes and uses the entries, empty if their names cover that. `budget`
    limits their total bytes; the least recently used are evicted first. `shared` is another folder
    to search, see `shared_folder`.
    """

    def __init__(
        self,
        folder: Path | None,
        format: EntryFormat,
        budget: int,
        version: str = "",
        shared: Path | None = None,
    ) -> None:
        self.folder = folder
        self.shared = shared
        self.format = format
        self.budget = budget
        self.version = version
        self.keeps = folder is not None and budget > 0
        """False without a folder or a budget, and once saving has failed."""
        self.written = Entries()
        """Files that this process has written."""
        self._unseen = 0
        """Bytes that may be saved before the next scan of the folder, which is slow."""
        self._warned: set[str] = set()

    def load(self, name: str) -> bytes | None:
        """Return the content stored under `name`, None if there is no trustworthy entry."""
        for folder in self._folders():
            path = folder / name
            try:
                data = read_own(path, self.format.largest_file)
                if data is None:
                    raise DamagedEntryError("it is not a regular file, or too large")
                return self.format.decode(name, data)[1]
            except FileNotFoundError:
                continue
            except DamagedEntryError as error:
                self._discard(path, str(error))
            except OSError as error:
                problem = f"cached {self.format.noun} `{path}` is not used: {error.strerror}"
                self._warn("refused", problem)
        return None

    def _folders(self) -> list[Path]:
        return [folder for folder in (self.folder, self.shared) if folder is not None]

    def has(self, name: str) -> bool:
        """Return whether an entry called `name` exists, without checking it."""
        return any((folder / name).exists() for folder in self._folders())

    def names(self, beginning: str = "") -> list[str]:
        """Return the sorted names of entries that start with `beginning`."""
        found: set[str] = set()
        for folder in self._folders():
            with suppress(OSError):
                found.update(name for name in os.listdir(folder) if name.startswith(beginning))
        return sorted(found)

    def discard(self, name: str, reason: str) -> None:
        """Remove the entry called `name`, which turned out to be unusable."""
        found = [path for folder in self._folders() if (path := folder / name).exists()]
        for path in found[:1]:  # the one that was loaded
            self._discard(path, reason)

    def _discard(self, path: Path, reason: str) -> None:
        what = self.format
        self._warn("damaged", f"cached {what.noun} `{path}` is {what.made} again: {reason}")
        with suppress(OSError):  # a directory, or a read-only file: the next process tries again
            path.unlink(missing_ok=True)

    def save(self, name: str, body: bytes) -> bool:
        """Store `body` as `name` atomically and return True.

        False for one that is too large, without a folder or budget, and on a full or read-only
        disk, which is logged once.
        """
        if self.folder is None or not self.keeps or len(body) > self.format.largest:
            return False
        data = self.format.encode(name, self.version, body)
        try:
            with whole_file(self.folder / name) as descriptor:
                write_all(descriptor, data)
            # Listing thousands of files after every entry would cost more than writing it.
            self._unseen -= len(data)
            if self._unseen <= 0:
                free = keep_within(self.folder, self.format.names, self.budget)
                # A quarter, since other processes save as well.
                self._unseen = max(free // 4, self.budget // 64)
        except OSError as error:
            # Once: a full disk would otherwise be tried, and told of, for every kernel.
            self.keeps = False
            problem = f"{self.format.noun}s cannot be cached in `{self.folder}`: {error.strerror}"
            self._warn("full", f"{problem}; {ELSEWHERE}")
            return False
        self.written += Entries(1, len(data))
        return True

    def report(self) -> CacheReport:
        """Report the entries by version, the current one first; changes nothing."""
        shared = self._shared_parts()
        if self.folder is None:
            return CacheReport(None, self.budget, [], shared)
        found: dict[str, Entries] = defaultdict(Entries)
        for file in files_in(self.folder, self.format.names):
            made_by = (self.format.version_of(file.path) or _UNKNOWN) if self.version else ""
            found[made_by] += Entries(1, file.nbytes)
        parts = [CachePart(name, name == self.version, held) for name, held in found.items()]
        parts.sort(key=lambda each: (not each.current, -each.entries.nbytes, each.name))
        return CacheReport(self.folder, self.budget, parts, shared)

    def _shared_parts(self) -> list[CachePart]:
        if self.shared is None:
            return []
        held = [Entries(1, each.nbytes) for each in files_in(self.shared, self.format.names)]
        return [CachePart(f"shared by users in `{self.shared}`", True, sum(held, Entries()))]

    def clear(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or only stale ones; return what was removed.

        Loaded entries remain usable. ExecutionError if one cannot be removed.
        """
        if self.folder is None or (stale_only and not self.version):
            return Entries()
        removed = remove(
            file
            for file in files_in(self.folder, self.format.names)
            if not stale_only or self.format.version_of(file.path) != self.version
        )
        remove_abandoned(self.folder)
        return removed

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.log(self.format.level, "%s", text)


class Found(Struct, frozen=True):
    """A file named like an entry, its size in bytes, and the time of its last use."""

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
    """Evict the least recently used entries until the rest fit; remove leftovers of killed writers.

    Returns the free bytes of the budget.
    """
    free = make_room(files_in(folder, names), budget)
    remove_abandoned(folder)
    return free


def make_room(files: Iterable[Found], budget: int, need: int = 0, before: float = math.inf) -> int:
    """Remove files last used before `before`, oldest first, until `need` bytes are free.

    Returns the free bytes of the budget.
    """
    in_order = sorted(files, key=lambda found: found.used)
    free = budget - sum(found.nbytes for found in in_order)
    for found in in_order:
        if free >= need or found.used >= before:
            break
        # Another process may have evicted it meanwhile.
        found.path.unlink(missing_ok=True)
        free += found.nbytes
    return free


def remove(files: Iterable[Found]) -> Entries:
    """Remove files and return their size; ExecutionError if one cannot be removed."""
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


def bytes_setting(
    variable: str, hint: str = "unset it for the default, 0 keeps nothing"
) -> int | None:
    """Return an environment variable as a number of bytes, None if unset; UsageError for other
    text."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"`{variable}` must be a number of bytes, got `{text}`", hint=hint)
    return int(text)


def budget_bytes() -> int:
    """Return `GPTRS_CACHE_BYTES`, else 512 MiB; raise UsageError if it is not a number of bytes."""
    stated = bytes_setting(VARIABLE)
    return DEFAULT_BUDGET if stated is None else stated
