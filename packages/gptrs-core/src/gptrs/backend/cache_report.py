"""Reports of the caches on disk for `gptrs cache`: kernels, packed weights, programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gptrs.cache_files import Entries
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CachePart:
    """The entries of one origin."""

    name: str
    """Kernels: the compiler and machine that they are for, in words. Weights: the path of their
    file when they were made. Empty where nothing tells origins apart."""
    current: bool
    """Whether this process would use them: the version and the file are as they were."""
    entries: Entries


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The content of a cache."""

    folder: Path | None
    """None where nothing can be kept, so that each process makes its own."""
    budget_bytes: int
    """The most bytes that are kept; the least recently used entries go first."""
    parts: Sequence[CachePart]

    @property
    def entries(self) -> Entries:
        """All entries."""
        return sum((part.entries for part in self.parts), Entries())

    @property
    def stale(self) -> Entries:
        """The entries that this process would not use."""
        return sum((part.entries for part in self.parts if not part.current), Entries())
