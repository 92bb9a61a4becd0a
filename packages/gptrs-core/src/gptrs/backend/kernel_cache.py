"""An optional protocol of backends that keep compiled kernels on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from gptrs.backend.cache_report import CacheReport
from gptrs.cache_files import Entries

Compiling = Callable[[int, int | None], None]
"""Told before a kernel is compiled: which one it is, from 1, and of how many, None if unknown."""


@runtime_checkable
class KernelCache(Protocol):
    """A backend that keeps compiled kernels on disk, for `gptrs cache` and for progress."""

    def cache_report(self) -> CacheReport:
        """Return the content, by what made it; compiles and changes nothing."""
        ...

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those that this process would not use; what was removed.

        Kernels that are loaded stay usable, and processes that run meanwhile compile anew.
        ExecutionError if an entry cannot be removed.
        """
        ...

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Call `tell` for each kernel that is compiled, not loaded, while the scope lasts.

        It is called by the thread that compiles, and must neither fail nor take long.
        """
        ...
