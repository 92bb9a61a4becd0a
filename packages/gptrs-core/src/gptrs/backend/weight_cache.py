"""An optional protocol of backends whose forms of weights on disk can be shown and cleared."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gptrs.disk_cache import CacheReport, Entries


@runtime_checkable
class WeightCache(Protocol):
    """A backend that keeps forms of weights on disk, for `gptrs cache`."""

    def weight_report(self) -> CacheReport:
        """Return what is kept, by the file of weights; changes nothing."""
        ...

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all forms, or those that this process would not use; what was removed.

        Processes that use them are not disturbed. ExecutionError if one cannot be removed.
        """
        ...

    def finish_weights(self) -> Entries:
        """Wait until all forms that this process has made are on disk; how many it has written."""
        ...
