"""Stores optimized programs, their captures, and implementation choices on disk for later
processes. Optimizing a program takes several times as long as capturing it. The file name of a
record is a digest of everything that determines it, see `entry_key`, so no record is ever stale.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct

from gptrs.capture.caching.source_identity import Names, Sources
from gptrs.capture.events import ImplementationChoice
from gptrs.disk_cache import CacheReport, DiskCache, Entries, EntryFormat
from gptrs.errors import GptrsError
from gptrs.ir import dtypes
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.split import Split
from gptrs.private_files import private_folder, shared_folder

FOLDER = "programs"
BUDGET = 64 << 20
"""Limit in bytes of all files together; a program of 12 layers takes some 40 kB."""
SMALLEST_KEPT = 100
"""Smallest program worth keeping, in instructions: smaller ones are optimized within 10 ms."""
FORMAT = EntryFormat(
    "optimized program", "optimized", 1, re.compile(r"[^.]+\.[0-9a-f]{8}"), 16 << 20, logging.DEBUG
)
"""Names consist of a key and a digest of the sizes served. ONNX files with weights as constants of
the graph, such as PaddlePaddle's, become programs of 5 to 11 MB; reading one takes half the time of
optimizing it. Not logged as a warning: backends, whose caches save more time, already warn of an
unwritable folder.
"""
_CHOICE = "choice-"
_LOG = logging.getLogger("gptrs")


class Optimized(Struct, frozen=True):
    """An optimized program and the sizes that it serves: each of `guards` must be >= 0."""

    split: Split
    guards: tuple[int, ...]


class KeptCapture(Struct, frozen=True):
    """The interface of a captured function, and the file of its optimized program."""

    optimized: str
    """The name of its file."""
    guards: tuple[int, ...]
    """Guards of the sizes served, as in `Optimized`."""
    bound: tuple[int, ...]
    """Closed-over tensors, by index in the function's `Closure`."""
    outputs: object
    """The nesting of its result, see `plain_structure`."""
    output_types: tuple[TensorType, ...]
    sources: Sources
    """The source files of other imported packages."""
    names: Names
    """Digest of the functions and classes of the imported modules."""


class KeptImport(Struct, frozen=True):
    """The record of an imported file: plain values, element types, dims."""

    content: object
    sources: Sources
    """The source files of other imported packages."""
    names: Names
    """Digest of the functions and classes of the imported modules."""


class OptimizedPrograms:
    """Records in `folder`, which only this user can write to; without a folder nothing is kept.

    Anyone who could write there could make this process run any program. So a file that is damaged,
    or that somebody else may have written, counts as absent, and reading creates only PTIR objects.
    """

    def __init__(self, folder: Path | None, shared: Path | None = None) -> None:
        self._cache = DiskCache(folder, FORMAT, BUDGET, shared=shared)

    @property
    def keeps(self) -> bool:
        """Whether programs can be kept."""
        return self._cache.keeps

    @property
    def written(self) -> Entries:
        """The files that this process has written."""
        return self._cache.written

    def find(self, key: str, guards: SizeGuards | None) -> tuple[str, Split] | None:
        """Return the program kept under `key` for the example sizes of `guards`, and its file.

        None if there is none. Its guards are added to `guards`.
        """
        for name in self._cache.names(key):
            found = self._read(name)
            if isinstance(found, Optimized) and _serves(found.guards, guards):
                return name, found.split
        return None

    def find_capture(
        self, key: str, guards: SizeGuards | None, holds: Callable[[KeptCapture], bool]
    ) -> tuple[KeptCapture, Split] | None:
        """Return a capture kept under `key` for which `holds` is true, and its optimized
        program."""
        for name in self._cache.names(key):
            kept = self._read(name)
            if not isinstance(kept, KeptCapture) or not holds(kept):
                continue
            if _serves(kept.guards, guards):
                found = self._read(kept.optimized)
                if isinstance(found, Optimized):
                    return kept, found.split
        return None

    def keep(self, key: str, split: Split, guards: SizeGuards | None) -> str | None:
        """Write an optimized program; return the name of its file.

        None if writing failed: a full disk is not an error.
        """
        decided = guards.guards if guards is not None else ()
        return self._write(key, decided, Optimized(split, decided))

    def keep_capture(self, key: str, kept: KeptCapture) -> None:
        """Write a capture."""
        self._write(key, kept.guards, kept)

    def find_import(self, key: str) -> KeptImport | None:
        """Return the record of an imported file kept under `key`, None if unknown."""
        found = self._read(_named(key, ()))
        return found if isinstance(found, KeptImport) else None

    def keep_import(self, key: str, kept: KeptImport) -> None:
        """Write the record of an imported file; it replaces an earlier one."""
        self._write(key, (), kept)

    def find_choice(self, key: str) -> ImplementationChoice | None:
        """Return the implementation chosen under `key`, None if unknown."""
        found = [self._read(name) for name in self._cache.names(f"{_CHOICE}{key}")]
        return next((each for each in found if isinstance(each, ImplementationChoice)), None)

    def keep_choice(self, key: str, choice: ImplementationChoice) -> None:
        """Record the fastest implementation of a functional under `key`."""
        self._write(f"{_CHOICE}{key}", (), choice)

    def choices(self) -> list[ImplementationChoice]:
        """Return all choices that are kept."""
        found = [self._read(name) for name in self._cache.names(_CHOICE)]
        return [each for each in found if isinstance(each, ImplementationChoice)]

    def _write(
        self,
        key: str,
        guards: tuple[int, ...],
        content: Optimized | KeptCapture | KeptImport | ImplementationChoice,
    ) -> str | None:
        name = _named(key, guards)
        return name if self._cache.save(name, pickle.dumps(content, protocol=5)) else None

    def report(self) -> CacheReport:
        """Return a report of the records; changes nothing."""
        return self._cache.report()

    def clear(self, *, stale_only: bool = False) -> Entries:
        """Remove all programs, none if `stale_only`; ExecutionError if one cannot be removed."""
        return self._cache.clear(stale_only=stale_only)

    def _read(self, name: str) -> object:
        """Return the record in a file that only this user can have written, or None."""
        body = self._cache.load(name)
        if body is None:
            return None
        try:
            return _ProgramReader(io.BytesIO(body)).load()
        except (
            pickle.UnpicklingError,
            AttributeError,
            TypeError,
            ValueError,
            GptrsError,
            EOFError,
        ):
            return None


def _named(key: str, guards: tuple[int, ...]) -> str:
    return f"{key}.{hashlib.blake2b(repr(guards).encode(), digest_size=4).hexdigest()}"


def _serves(decided: tuple[int, ...], guards: SizeGuards | None) -> bool:
    return guards is None or guards.adopt(decided)


@cache
def optimized_programs() -> OptimizedPrograms:
    """Return the store of this process; disabled if its directory cannot be made private.

    The directory is below `GPTRS_CACHE_DIR`, else below the user's cache directory.
    `GPTRS_CACHE_BYTES=0` disables the store.
    """
    if os.environ.get("GPTRS_CACHE_BYTES", "").strip() == "0":
        return OptimizedPrograms(None)
    try:
        return OptimizedPrograms(private_folder(FOLDER), shared_folder(FOLDER))
    except OSError as error:
        _LOG.debug("optimized programs are not kept: %s", error.strerror)
        return OptimizedPrograms(None, shared_folder(FOLDER))


_RECORDS = (__name__, ImplementationChoice.__module__)


class _ProgramReader(pickle.Unpickler):
    """An unpickler that creates only PTIR objects."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == (dtypes.__name__, dtypes.by_name.__name__):
            return dtypes.by_name
        known = module in _RECORDS or module.startswith(("gptrs.ir.", "gptrs.optimizer."))
        found = super().find_class(module, name) if known and "." not in name else None
        # Only classes of the module itself: functions, and names that it imports, would let a file
        # call other code.
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"`{module}.{name}` is not part of a program")
        return found
