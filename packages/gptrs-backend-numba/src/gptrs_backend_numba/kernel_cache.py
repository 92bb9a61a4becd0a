"""The kernel cache as `gptrs cache` sees it: `gptrs.backend.kernel_cache.KernelCache`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from gptrs.backend.cache_report import CacheReport
from gptrs.backend.kernel_cache import Compiling
from gptrs.cache_files import Entries
from gptrs_backend_numba.codegen.compile_listeners import LISTENERS
from gptrs_backend_numba.codegen.compiled import kernel_store
from gptrs_backend_numba.codegen.kernel_inventory import clear, versions_in


class StoredKernels:
    """The part of the backend that knows its kernels on disk."""

    def cache_report(self) -> CacheReport:
        """Return the entries that are kept, by the version that made them."""
        store = kernel_store()
        versions = [] if store.folder is None else versions_in(store.folder, store.version)
        return CacheReport(store.folder, store.budget, versions)

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those of other versions; ExecutionError if one cannot be."""
        store = kernel_store()
        if store.folder is None:
            return Entries()
        return clear(store.folder, keep=store.version if stale_only else None)

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Scope in which `tell` hears of each kernel that no cache has."""
        return LISTENERS.told(tell)
