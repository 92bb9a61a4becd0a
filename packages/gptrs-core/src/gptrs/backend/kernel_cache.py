"""Optional protocols of backends that keep compiled kernels, or whole programs, on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from gptrs.disk_cache import CacheReport, Entries

Compiling = Callable[[int, int | None], None]
"""Told before a kernel is compiled: which one it is, from 1, and of how many, None if unknown."""


@runtime_checkable
class CodeCache(Protocol):
    """A backend that keeps compiled kernels or programs on disk, for `gptrs cache`."""

    def cache_report(self) -> CacheReport:
        """Return the content, by what made it; compiles and changes nothing."""
        ...

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those that this process would not use; what was removed.

        What is loaded stays usable, and processes that run meanwhile compile anew. ExecutionError
        if an entry cannot be removed.
        """
        ...


@runtime_checkable
class KernelCache(CodeCache, Protocol):
    """A `CodeCache` that also tells of each kernel that it compiles, for progress.

    Of backends that do not, commands name the programs that are compiled.
    """

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Call `tell` for each kernel that is compiled, not loaded, while the scope lasts.

        It is called by the thread that compiles, and must neither fail nor take long.
        """
        ...
