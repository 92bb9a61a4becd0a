"""Programs that XLA compiled, on disk: where JAX keeps them, their budget, their removal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import jax

from gptrs.api import ExecutionError, UsageError
from gptrs.api.backends import CachePart, CacheReport, Entries, private_folder
from gptrs_backend_jax.client import change_setting, setting

BYTES_VARIABLE = "GPTRS_CACHE_BYTES"
"""The environment variable with the most bytes of compiled code on disk; 0 keeps none."""
_DEFAULT_BUDGET = 512 << 20
_LEAST_SECONDS = 0.1
"""Programs that compile faster are not worth a file."""
_FOLDER = "jax"
_ENDING, _PARTIAL = "-cache", ".new"
"""Suffixes of kept programs, the one that JAX uses, too, and of files that are being written."""
_FOLDER_SETTING = "jax_compilation_cache_dir"


def keep_compiled_programs(*, whole: bool) -> None:
    """Keep what XLA compiles in a folder of our cache, unless the user gave JAX another.

    Programs are kept `whole` by us, or their parts by JAX, which then traces each of them anew.
    Those unused for longest are removed until the others fit into the budget.
    """
    budget = _budget_bytes()
    if setting(_FOLDER_SETTING) is not None or not budget:
        return
    with suppress(OSError):  # nothing can be kept here: each process compiles anew
        folder = _folder()
        _keep_within(folder.parent, budget)
        if whole:
            return
        change_setting(_FOLDER_SETTING, str(folder))
        change_setting("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)


def keeps_executables() -> bool:
    """Whether programs are kept whole: JAX cannot write down again what it has read itself."""
    return setting(_FOLDER_SETTING) is None and bool(_budget_bytes())


def read_executable(key: str) -> bytes:
    """Return what was kept under `key`, and mark it as used; nothing if it is not there."""
    with suppress(OSError):
        path = _folder() / f"{key}{_ENDING}"
        data = path.read_bytes()
        os.utime(path)
        return data
    return b""


def keep_executable(key: str, write: Callable[[], bytes | None], seconds: float) -> None:
    """Keep the bytes that `write` returns under `key`; compiling the program took `seconds`."""
    data = write() if seconds >= _LEAST_SECONDS else None
    if data is None:
        return
    with suppress(OSError):
        folder = _folder()
        descriptor, partial = tempfile.mkstemp(dir=folder, suffix=_PARTIAL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(partial).replace(folder / f"{key}{_ENDING}")


class KeptPrograms:
    """The part of the backend that knows its programs on disk."""

    def cache_report(self) -> CacheReport:
        """Return what is kept, by the version of JAX that made it; changes nothing."""
        budget = _budget_bytes()
        if not budget:
            return CacheReport(None, 0, [])
        try:
            folder = _folder()
        except OSError:
            return CacheReport(None, budget, [])
        parts = [
            CachePart(f"JAX {version.name}", _is_used(version), sum(held, Entries()))
            for version in sorted(folder.parent.iterdir())
            if (held := [Entries(1, nbytes) for _, nbytes, _ in _programs(version)])
        ]
        return CacheReport(folder.parent, budget, parts)

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all programs, or those of other versions; ExecutionError if one cannot be."""
        try:
            folder = _folder()
        except OSError:
            return Entries()
        removed = Entries()
        for version in folder.parent.iterdir():
            if stale_only and _is_used(version):
                continue
            for path, nbytes, _ in list(_programs(version)):
                _remove(path)
                removed += Entries(1, nbytes)
        return removed


def _folder() -> Path:
    """Return the folder of this version of JAX; OSError where nothing can be kept."""
    return private_folder(_FOLDER, jax.__version__)


def _is_used(folder: Path) -> bool:
    """Whether this process reads programs from `folder`."""
    given = setting(_FOLDER_SETTING)
    return folder.name == jax.__version__ if given is None else given == str(folder)


def _programs(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Return each program in `folder`, its bytes, and when it was read or written last."""
    for path in folder.glob(f"*{_ENDING}"):
        with suppress(FileNotFoundError):  # another process was faster
            status = path.lstat()
            yield path, status.st_size, max(status.st_atime, status.st_mtime)


def _keep_within(folder: Path, budget: int) -> None:
    """Remove the programs of all versions unused for longest, until the others fit."""
    found = [each for version in folder.iterdir() for each in _programs(version)]
    held = sum(nbytes for _, nbytes, _ in found)
    for path, nbytes, _ in sorted(found, key=lambda each: each[2]):
        if held <= budget:
            return
        path.unlink(missing_ok=True)
        held -= nbytes


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ExecutionError(
            f"cannot remove `{path}`: {error.strerror}",
            hint="make the directory writable, or set `GPTRS_CACHE_DIR` to another one",
        ) from error


def _budget_bytes() -> int:
    """Return `GPTRS_CACHE_BYTES`, else 512 MiB; UsageError if it is not a number of bytes."""
    text = os.environ.get(BYTES_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_BUDGET
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(
            f"`{BYTES_VARIABLE}` must be a number of bytes, got `{text}`",
            hint="unset it for the default, 0 keeps nothing",
        )
    return int(text)
