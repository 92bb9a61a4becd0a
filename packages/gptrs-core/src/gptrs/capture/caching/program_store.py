"""The entries of a program cache within a budget, and their statistics."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from gptrs.capture.caching.miss_reasons import REASONS, MissReasons, Reason
from gptrs.capture.caching.program_key import ProgramKey
from gptrs.quick_dataclass import dataclass

T = TypeVar("T")

BYTES_PER_INSTRUCTION = 1024
"""A generous estimate: the key and the executables of our backends take about 600."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts since the cache was made or cleared, and what it holds now."""

    hits: int
    misses: int
    entries: int
    bytes: int
    """Estimated memory of the entries."""
    evictions: int
    """Entries that were dropped to make room."""
    refused: int
    """Programs that alone were larger than the budget, and so were not kept."""
    misses_by_reason: Mapping[Reason, int]
    """Misses by reason, all reasons listed; see `MissReasons.explain`."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A compiled program, and the bytes that it is estimated to take."""

    value: T
    nbytes: int


def measured(key: ProgramKey, value: T) -> Entry[T]:
    """Return an entry with its size: literals, an estimate per instruction, and `value.nbytes`.

    `nbytes` is optional; anything but a positive int counts as 0.
    """
    reported: object = getattr(value, "nbytes", 0)
    own = reported if isinstance(reported, int) and reported > 0 else 0
    return Entry(value, key.literal_bytes + key.instructions * BYTES_PER_INSTRUCTION + own)


class ProgramStore(Generic[T]):
    """Entries by key, the least recently used dropped first. Not safe between threads."""

    def __init__(self) -> None:
        self._entries = OrderedDict[ProgramKey, Entry[T]]()
        self._reasons = MissReasons()
        self._bytes = 0
        self._counts = Counter[str]()
        self._misses = Counter[Reason]()

    def find(self, key: ProgramKey) -> Entry[T] | None:
        """Return the entry under `key`, which is now the most recently used one."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def count_hit(self) -> None:
        """A program was served without being compiled."""
        self._counts["hits"] += 1

    def count_miss(self, key: ProgramKey) -> Reason:
        """Count a miss, with its reason."""
        reason = self._reasons.explain(key)
        self._misses[reason] += 1
        return reason

    def keep(self, key: ProgramKey, entry: Entry[T], budget: int, capacity: int) -> list[Entry[T]]:
        """Add an entry, unless it alone is over `budget`; what had to go to make room for it."""
        if entry.nbytes > budget:
            self._counts["refused"] += 1
            self._reasons.refuse(key)
            return []
        self._entries[key] = entry
        self._reasons.add(key)
        self._bytes += entry.nbytes
        dropped: list[Entry[T]] = []
        while self._bytes > budget or len(self._entries) > capacity:
            dropped.append(self._drop_oldest())
        return dropped

    def statistics(self) -> CacheStatistics:
        """Return all counts until now."""
        return CacheStatistics(
            hits=self._counts["hits"],
            misses=self._misses.total(),
            entries=len(self._entries),
            bytes=self._bytes,
            evictions=self._counts["evictions"],
            refused=self._counts["refused"],
            misses_by_reason=MappingProxyType({each: self._misses[each] for each in REASONS}),
        )

    def _drop_oldest(self) -> Entry[T]:
        key, entry = self._entries.popitem(last=False)
        self._reasons.drop(key)
        self._bytes -= entry.nbytes
        self._counts["evictions"] += 1
        return entry
