"""The answers of the backend to `gptrs cache`, about weights."""

from __future__ import annotations

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.disk_cache import CacheReport, Entries
from gptrs_backend_numba.kept_weights.weight_folder import clear, kept_in
from gptrs_backend_numba.kept_weights.weight_store import weight_store


class StoredWeights:
    """The part of the backend that knows its forms of weights on disk."""

    def weight_report(self) -> CacheReport:
        """Return the forms on disk, by the file of weights."""
        store = weight_store()
        files = [] if store.root is None else kept_in(store.root, store.version)
        return CacheReport(store.root, store.budget, files)

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all forms, or those of other versions and of files that were changed."""
        store = weight_store()
        if store.root is None:
            return Entries()
        return clear(store.root, keep=store.version if stale_only else None)

    def finish_weights(self) -> Entries:
        """Wait until all forms are written; those that this process wrote."""
        store = weight_store()
        store.writer.finish()
        return store.written

    def prefetch_weight(self, identity: WeightIdentity) -> bool:
        """Have the system read the forms of a weight; False if none is on disk."""
        return weight_store().prefetch(identity)
