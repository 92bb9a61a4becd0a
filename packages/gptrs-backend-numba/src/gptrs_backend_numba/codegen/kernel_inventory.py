"""The folder of compiled kernels: listing, keeping within a budget, clearing."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gptrs.backend.kernel_cache import CacheVersion, Entries
from gptrs.errors import ExecutionError, UsageError
from gptrs_backend_numba.codegen.kernel_entry import version_of

VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable with the most bytes that compiled kernels may take on disk."""
DEFAULT_BUDGET = 512 << 20

_NAME = re.compile(r"[0-9a-f]{40}")
_PARTIAL = ".new-"
_ABANDONED_S = 3600.0
"""After so many seconds nobody writes to a partial file any more: its writer was killed."""
_UNKNOWN = "another version of gptrs, or damaged"


@dataclass(frozen=True, slots=True)
class Found:
    """A file that holds an entry by its name, its size, and when it was used last."""

    path: Path
    nbytes: int
    used: float


def found_in(folder: Path) -> Iterator[Found]:
    """Return the entries in `folder`; other files are ignored."""
    with os.scandir(folder) as files:
        for file in files:
            if not _NAME.fullmatch(file.name):
                continue
            try:
                status = file.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process was faster
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield Found(Path(file.path), status.st_size, status.st_mtime)


def versions_in(folder: Path, current: str) -> list[CacheVersion]:
    """Return the entries by the version that made them, `current` first, then the largest."""
    entries: dict[str, Entries] = defaultdict(Entries)
    for found in found_in(folder):
        entries[version_of(found.path) or _UNKNOWN] += Entries(1, found.nbytes)
    versions = [CacheVersion(name, name == current, held) for name, held in entries.items()]
    return sorted(versions, key=lambda each: (not each.current, -each.entries.nbytes, each.name))


def keep_within(folder: Path, budget: int) -> int:
    """Remove the entries unused for longest until the others fit, and what killed writers left.

    Returns how many of the bytes of the budget are free.
    """
    entries = sorted(found_in(folder), key=lambda found: found.used)
    excess = sum(found.nbytes for found in entries) - budget
    for found in entries:
        if excess <= 0:
            break
        found.path.unlink(missing_ok=True)
        excess -= found.nbytes
    _remove_abandoned(folder)
    return -excess


def clear(folder: Path, keep: str | None) -> Entries:
    """Remove all entries but those of the version `keep`; ExecutionError if one cannot be."""
    removed = Entries()
    for found in found_in(folder):
        if keep is not None and version_of(found.path) == keep:
            continue
        try:
            found.path.unlink(missing_ok=True)
        except OSError as error:
            raise ExecutionError(
                f"cannot remove `{found.path}`: {error.strerror}",
                hint="make the directory writable, or set `GPTRS_CACHE_DIR` to another one",
            ) from error
        removed += Entries(1, found.nbytes)
    _remove_abandoned(folder)
    return removed


def budget_bytes() -> int:
    """Return `GPTRS_CACHE_BYTES`, else 512 MiB; raise UsageError if it is not a number of bytes."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_BUDGET
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(
            f"`{VARIABLE}` must be a number of bytes, got `{text}`",
            hint=f"unset it to keep compiled kernels of {DEFAULT_BUDGET} bytes",
        )
    return int(text)


def _remove_abandoned(folder: Path) -> None:
    oldest = time.time() - _ABANDONED_S
    for path in folder.glob(f"{_PARTIAL}*"):
        try:
            if path.lstat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue
