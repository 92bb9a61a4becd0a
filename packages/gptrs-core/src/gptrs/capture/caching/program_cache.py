"""Compiled programs by structure, with a budget of bytes and the reasons for misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from typing_extensions import override

from gptrs.capture.caching.miss_reasons import REASONS, MissReasons, Reason
from gptrs.capture.caching.program_key import ProgramKey
from gptrs.disk_cache import bytes_setting
from gptrs.errors import UsageError
from gptrs.memory_cache import MemoryCache
from gptrs.quick_dataclass import dataclass

T = TypeVar("T")

VARIABLE = "GPTRS_PROGRAM_CACHE_BYTES"
"""The environment variable with the budget of caches that are made without one."""

DEFAULT_BUDGET = 512 << 20
"""Bytes that a cache keeps unless it is told otherwise."""

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


class ProgramCache(MemoryCache[ProgramKey, T, Reason]):
    """Maps the structure of a program to what it was compiled to.

    The key is the structure itself, which is compared in full before the cache answers: two
    different programs never share an executable, whatever their digests are.

    The entries take at most `budget_bytes` (default: `GPTRS_PROGRAM_CACHE_BYTES`, else 512 MiB).
    An entry counts with its literals, an estimate for each instruction, and the attribute `nbytes`
    of what is kept, where it has one: an int, the bytes that the executable holds of its own, such
    as packed weights. It is read once, after the compilation.
    """

    def __init__(self, budget_bytes: int | None = None, capacity: int = 1024) -> None:
        if capacity < 1 or (budget_bytes is not None and budget_bytes < 0):
            raise UsageError(
                "a program cache needs a capacity >= 1 and a budget >= 0,"
                f" got {capacity} and {budget_bytes}"
            )
        self._budget = budget_bytes
        super().__init__(capacity)

    @override
    def _reset(self) -> None:
        super()._reset()
        self._reasons = MissReasons()
        self._misses = Counter[Reason]()

    @property
    @override
    def budget_bytes(self) -> int:
        """The most bytes that the entries may take; UsageError for a bad environment variable."""
        if self._budget is None:
            self._budget = _budget_of_environment()
        return self._budget

    @override
    def size_of(self, key: ProgramKey, value: T) -> int:
        reported: object = getattr(value, "nbytes", 0)
        own = reported if isinstance(reported, int) and reported > 0 else 0
        return key.literal_bytes + key.instructions * BYTES_PER_INSTRUCTION + own

    @override
    def reason_of(self, key: ProgramKey) -> Reason:
        reason = self._reasons.explain(key)
        self._misses[reason] += 1
        return reason

    @override
    def added(self, key: ProgramKey) -> None:
        self._reasons.add(key)

    @override
    def dropped(self, key: ProgramKey, *, refused: bool) -> None:
        if refused:
            self._reasons.refuse(key)
        else:
            self._reasons.drop(key)

    @property
    def statistics(self) -> CacheStatistics:
        """Counts since the cache was made or cleared, and what it holds."""
        with self._lock:
            return CacheStatistics(
                hits=self._hits,
                misses=self._misses.total(),
                entries=len(self._entries),
                bytes=self._bytes,
                evictions=self._evictions,
                refused=self._refused,
                misses_by_reason=MappingProxyType({each: self._misses[each] for each in REASONS}),
            )


def _budget_of_environment() -> int:
    hint = f"unset it to keep compiled programs of {DEFAULT_BUDGET} bytes"
    stated = bytes_setting(VARIABLE, hint)
    return DEFAULT_BUDGET if stated is None else stated
