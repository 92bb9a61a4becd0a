"""The folder of kept weights: `VERSION/FILE/WEIGHT-FORM`; listing, a budget, clearing."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gptrs.backend.weight_identity import file_digest
from gptrs.disk_cache import CachePart, Entries, Found, files_in, make_room, remove
from gptrs.private_files import remove_abandoned
from gptrs_backend_numba.kept_weights.checked_files import CHECKED

LABEL = "path"
"""The file that says where the file of weights was."""
_FOLDER = re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}")
_NAMES = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
_LONGEST_LABEL = 1 << 14
_MOST_BYTES = 20 << 30
_SHARE = 4
"""The part of the disk, 1 / so much of what is free and what is kept, that is taken at most."""


def kept_files(root: Path) -> Iterator[Found]:
    """Return all kept forms below `root`; other files are ignored."""
    for folder in _folders(root):
        with suppress(FileNotFoundError):  # another process was faster
            yield from files_in(folder, _NAMES)


def default_budget(root: Path) -> int:
    """Return 20 GiB, or a quarter of what is free and kept on a disk where that is less."""
    held = sum(found.nbytes for found in kept_files(root))
    return min(_MOST_BYTES, (shutil.disk_usage(root).free + held) // _SHARE)


def free_bytes(root: Path, budget: int, need: int, before: float) -> int:
    """Return the free bytes of a budget, after removal of forms for `need` bytes: see `make_room`.

    What killed writers left is removed, too.
    """
    free = make_room(kept_files(root), budget, need, before)
    _remove_empty(root)
    return free


def kept_in(root: Path, version: str) -> list[CachePart]:
    """Return what is kept by the file of weights and whether `version` uses it, largest first."""
    entries: dict[tuple[str, bool], Entries] = defaultdict(Entries)
    about: dict[Path, tuple[str, bool]] = {}
    for found in kept_files(root):
        folder = found.path.parent
        if folder not in about:
            about[folder] = _label(folder), _is_current(folder, version)
        entries[about[folder]] += Entries(1, found.nbytes)
    files = [CachePart(path, current, held) for (path, current), held in entries.items()]
    return sorted(files, key=lambda each: (not each.current, -each.entries.nbytes, each.name))


def clear(root: Path, keep: str | None) -> Entries:
    """Remove all forms but those that the version `keep` uses; ExecutionError if one cannot be."""
    kept = {folder for folder in _folders(root) if keep and _is_current(folder, keep)}
    removed = remove(found for found in kept_files(root) if found.path.parent not in kept)
    _remove_empty(root)
    return removed


def _folders(root: Path) -> list[Path]:
    """Return the folders of files of weights, of all versions."""
    return [path for path in root.glob("*/*") if _FOLDER.fullmatch(str(path.relative_to(root)))]


def _label(folder: Path) -> str:
    try:
        with (folder / LABEL).open("rb") as file:
            return os.fsdecode(file.read(_LONGEST_LABEL))
    except OSError:
        return "unknown"


def _is_current(folder: Path, version: str) -> bool:
    """Return whether the file of weights is where it was, and has not been changed."""
    if folder.parent.name != version:
        return False
    try:
        return file_digest(os.stat(_label(folder))).hex() == folder.name
    except (OSError, ValueError):
        return False


def _remove_empty(root: Path) -> None:
    """Remove folders in which no form is left, and what killed writers left in others."""
    for folder in _folders(root):
        with suppress(OSError):
            remove_abandoned(folder)
            if {path.name for path in folder.iterdir()} <= {LABEL, CHECKED}:
                for name in (LABEL, CHECKED):
                    (folder / name).unlink(missing_ok=True)
            folder.rmdir()
    for folder in root.iterdir():
        with suppress(OSError):  # it is not empty
            folder.rmdir()
