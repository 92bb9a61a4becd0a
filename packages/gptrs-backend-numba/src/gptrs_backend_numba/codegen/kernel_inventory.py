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
from gptrs.private_files import ABANDONED_S, remove_abandoned
from gptrs_backend_numba.codegen.kernel_entry import version_of

VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable with the most bytes that compiled kernels may take on disk."""
DEFAULT_BUDGET = 512 << 20

_NAME = re.compile(r"[0-9a-f]{40}")
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
    remove_abandoned(folder, time.time() - ABANDONED_S)
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
    remove_abandoned(folder, time.time() - ABANDONED_S)
    return removed


def bytes_setting(variable: str) -> int | None:
    """Return the bytes that a variable states, None if it is unset; UsageError for other text."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(
            f"`{variable}` must be a number of bytes, got `{text}`",
            hint="unset it for the default, 0 keeps nothing",
        )
    return int(text)


def budget_bytes() -> int:
    """Return `GPTRS_CACHE_BYTES`, else 512 MiB; raise UsageError if it is not a number of bytes."""
    stated = bytes_setting(VARIABLE)
    return DEFAULT_BUDGET if stated is None else stated
