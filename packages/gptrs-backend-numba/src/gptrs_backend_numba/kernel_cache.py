"""The kernel cache as `gptrs cache` sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from gptrs.backend.contract import Compiling
from gptrs.disk_cache import CacheReport, Entries
from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.compiled import kernel_store


class StoredKernels:
    """The part of the backend that knows its kernels on disk."""

    def cache_report(self) -> CacheReport:
        """Return the entries that are kept, by the version that made them."""
        return kernel_store().report()

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those of other versions; ExecutionError if one cannot be."""
        return kernel_store().clear(stale_only=stale_only)

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Scope in which `tell` hears of each kernel that no cache has."""
        return LISTENERS.told(tell)
