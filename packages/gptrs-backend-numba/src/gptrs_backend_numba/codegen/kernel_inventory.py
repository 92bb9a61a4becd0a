"""The folder of compiled kernels: listing, its budget, clearing."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

from gptrs.backend.cache_report import CachePart
from gptrs.cache_files import Entries, files_in, remove
from gptrs.errors import UsageError
from gptrs.private_files import remove_abandoned
from gptrs_backend_numba.codegen.kernel_entry import version_of

VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable with the most bytes that compiled kernels may take on disk."""
DEFAULT_BUDGET = 512 << 20

NAMES = re.compile(r"[0-9a-f]{40}")
"""The names of entries; other files in the folder are ignored."""
_UNKNOWN = "another version of gptrs, or damaged"


def versions_in(folder: Path, current: str) -> list[CachePart]:
    """Return the entries by the version that made them, `current` first, then the largest."""
    entries: dict[str, Entries] = defaultdict(Entries)
    for found in files_in(folder, NAMES):
        entries[version_of(found.path) or _UNKNOWN] += Entries(1, found.nbytes)
    versions = [CachePart(name, name == current, held) for name, held in entries.items()]
    return sorted(versions, key=lambda each: (not each.current, -each.entries.nbytes, each.name))


def clear(folder: Path, keep: str | None) -> Entries:
    """Remove all entries but those of the version `keep`; ExecutionError if one cannot be."""
    entries = files_in(folder, NAMES)
    removed = remove(each for each in entries if keep is None or version_of(each.path) != keep)
    remove_abandoned(folder)
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
