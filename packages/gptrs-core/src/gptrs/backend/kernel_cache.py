"""An optional protocol of backends that keep compiled kernels on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from gptrs.cache_files import Entries

Compiling = Callable[[int, int | None], None]
"""Told before a kernel is compiled: which one it is, from 1, and of how many, None if unknown."""


@dataclass(frozen=True, slots=True)
class CacheVersion:
    """The entries that one version of the backend and of its compiler made on one machine."""

    name: str
    """The compiler and machine that they were made by and for, in words."""
    current: bool
    """Whether this process would use them; other entries are stale."""
    entries: Entries


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The content of the cache of a backend."""

    folder: Path | None
    """None where kernels cannot be kept, so that each process compiles them."""
    budget_bytes: int
    """The most bytes that are kept; the least recently used entries go first."""
    versions: Sequence[CacheVersion]

    @property
    def entries(self) -> Entries:
        """All entries."""
        return sum((version.entries for version in self.versions), Entries())

    @property
    def stale(self) -> Entries:
        """The entries that this process would not use."""
        stale = (version.entries for version in self.versions if not version.current)
        return sum(stale, Entries())


@runtime_checkable
class KernelCache(Protocol):
    """A backend that keeps compiled kernels on disk, for `gptrs cache` and for progress."""

    def cache_report(self) -> CacheReport:
        """Return the content; compiles and changes nothing."""
        ...

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those that this process would not use; what was removed.

        Kernels that are loaded stay usable, and processes that run meanwhile compile anew.
        ExecutionError if an entry cannot be removed.
        """
        ...

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Scope in which `tell` hears of kernels that are compiled, not of those that are loaded.

        It is called by the thread that compiles, and must neither fail nor take long.
        """
        ...
