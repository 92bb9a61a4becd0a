"""An optional protocol of backends whose forms of weights on disk can be shown and cleared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from gptrs.cache_files import Entries


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The forms that are kept of the weights in one file."""

    path: str
    """Where the file was when they were made."""
    current: bool
    """Whether this process would use them: the file is as it was, and so is the backend."""
    entries: Entries


@dataclass(frozen=True, slots=True)
class WeightCacheReport:
    """The forms of weights that a backend keeps on disk."""

    folder: Path | None
    """None where nothing can be kept."""
    budget_bytes: int
    """The most bytes that are kept; the least recently used go first."""
    files: Sequence[KeptFile]

    @property
    def entries(self) -> Entries:
        """All entries."""
        return sum((file.entries for file in self.files), Entries())

    @property
    def stale(self) -> Entries:
        """The entries that this process would not use."""
        return sum((file.entries for file in self.files if not file.current), Entries())


@runtime_checkable
class WeightCache(Protocol):
    """A backend that keeps forms of weights on disk, for `gptrs cache`."""

    def weight_report(self) -> WeightCacheReport:
        """Return what is kept; changes nothing."""
        ...

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all forms, or those that this process would not use; what was removed.

        Processes that use them are not disturbed. ExecutionError if one cannot be removed.
        """
        ...

    def finish_weights(self) -> Entries:
        """Wait until all forms that this process has made are on disk; how many it has written."""
        ...
