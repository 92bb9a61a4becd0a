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
from gptrs.quick_dataclass import dataclass

VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable with the most bytes of compiled code on disk; 0 keeps nothing."""
DEFAULT_BUDGET = 512 << 20
"""Bytes of compiled code that are kept where the variable is not set."""
_LOG = logging.getLogger("gptrs")
_LONGEST_VERSION = 512
_UNKNOWN = "another version of gptrs, or damaged"


@dataclass(frozen=True, slots=True)
class Entries:
    """A number of entries and the bytes that they take on disk."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: Entries) -> Entries:
        return Entries(self.count + other.count, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class CachePart:
    """The entries of one origin."""

    name: str
    """Kernels: their compiler and machine, in readable form. Weights: the path of their file when
    they were made. Empty if origins are not distinguished.
    """
    current: bool
    """Whether this process would use them: the version and the file are as they were."""
    entries: Entries


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The content of a cache, for `gptrs cache`."""

    folder: Path | None
    """None if nothing can be cached, so that each process makes its own."""
    budget_bytes: int
    """The most bytes that are kept; the least recently used entries go first."""
    parts: Sequence[CachePart]
    installed: Sequence[CachePart] = ()
    """Parts installed with the backend, or kept in a folder that users share. The budget does not
    count them, and nothing here removes them. The name of a part that is not current says why."""

    @property
    def entries(self) -> Entries:
        """All entries."""
        return sum((part.entries for part in self.parts), Entries())

    @property
    def stale(self) -> Entries:
        """The entries that this process would not use."""
        return sum((part.entries for part in self.parts if not part.current), Entries())


class DamagedEntryError(Exception):
    """An error for a file that is not a whole entry; the text says why."""


@dataclass(frozen=True, slots=True)
class EntryFormat:
    """The entries of a cache: their files, and the words for them in messages."""

    noun: str
    """One of them, `kernel`."""
    made: str
    """How one comes to be, `compiled`."""
    number: int
    """Changes with the format of their content."""
    names: re.Pattern[str]
    """Names of their files; other files in the folder are ignored."""
    largest: int
    """Bytes of a content that is written or read at all."""
    level: int = logging.WARNING
    """The level of log messages about entries that cannot be used or kept."""

    @property
    def magic(self) -> bytes:
        """The first line of each file."""
        return f"gptrs {self.noun} {self.number}\n".encode()

    @property
    def largest_file(self) -> int:
        """Bytes of a file with the largest content."""
        return len(self.magic) + SEAL_BYTES + _LONGEST_VERSION + self.largest

    def encode(self, name: str, version: str, body: bytes) -> bytes:
        """Return the bytes of the file `name`: a seal, the version, the content."""
        return self.magic + sealed(name, version.encode() + b"\n" + body)

    def decode(self, name: str, data: bytes) -> tuple[str, bytes]:
        """Return the version and the content in the file `name`.

        DamagedEntryError unless it is whole, and was written under this name.
        """
        magic = self.magic
        content = unsealed(name, data[len(magic) :]) if data.startswith(magic) else None
        if content is None:
            raise DamagedEntryError(f"it is damaged, or the file of another {self.noun}")
        version, _, body = content.partition(b"\n")
        return version.decode(), body

    def version_of(self, path: Path) -> str | None:
        """Return the version that a file states, unchecked; None without one."""
        start = len(self.magic) + SEAL_BYTES
        try:
            with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
                head = file.read(start + _LONGEST_VERSION)
        except OSError:
            return None
        version, end, _ = head[start:].partition(b"\n")
        return version.decode(errors="replace") if end and head.startswith(self.magic) else None


class DiskCache:
    """Contents by name in `folder`; without a folder nothing is found or kept.

    Entries are code, or decide which code runs: `folder` must belong to the user and be closed to
    others, see `private_folder`. An entry that is damaged, or that another user may have written,
    counts as absent, and is logged once per process. So is the first entry that cannot be written,
    after which no more are. No failure of the disk is an error.

    `version` is what entries are made by and for, empty where their names cover that; `budget` is
    the most bytes that they may take together, those unused for longest go first. `shared` is
    another folder, see `shared_folder`, where entries are looked for, too.
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
        """The files that this process has written."""
        self._unseen = 0
        """Bytes that may be saved before the next scan of the folder, which is slow."""
        self._warned: set[str] = set()

    def load(self, name: str) -> bytes | None:
        """Return the content stored under `name`, None if there is none that can be trusted."""
        for folder in self._folders():
            path = folder / name
            try:
                data = read_own(path, self.format.largest_file)
                if data is None:
                    raise DamagedEntryError(f"it is no {self.format.noun}")
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
        """Return whether there is an entry called `name`, which nobody has looked at."""
        return any((folder / name).exists() for folder in self._folders())

    def names(self, beginning: str = "") -> list[str]:
        """Return the names of entries that begin like this, sorted."""
        found: set[str] = set()
        for folder in self._folders():
            with suppress(OSError):
                found.update(name for name in os.listdir(folder) if name.startswith(beginning))
        return sorted(found)

    def discard(self, name: str, reason: str) -> None:
        """Remove the entry called `name`, which turned out to be of no use."""
        found = [path for folder in self._folders() if (path := folder / name).exists()]
        for path in found[:1]:  # the one that was loaded
            self._discard(path, reason)

    def _discard(self, path: Path, reason: str) -> None:
        what = self.format
        self._warn("damaged", f"cached {what.noun} `{path}` is {what.made} again: {reason}")
        with suppress(OSError):  # a directory, or one that is read-only: the next process looks
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
            self._unseen -= len(data)
            if self._unseen <= 0:
                free = keep_within(self.folder, self.format.names, self.budget)
                # A quarter, since other processes save as well.
                self._unseen = max(free // 4, self.budget // 64)
        except OSError as error:
            self.keeps = False
            problem = f"{self.format.noun}s cannot be cached in `{self.folder}`: {error.strerror}"
            self._warn("full", f"{problem}; {ELSEWHERE}")
            return False
        self.written += Entries(1, len(data))
        return True

    def report(self) -> CacheReport:
        """Return what is kept by the version that made it, this one first; changes nothing."""
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
        """Remove all entries, or only those of other versions; return what was removed.

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
    """Return the value of a variable in bytes, None if it is unset; UsageError for other text."""
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
