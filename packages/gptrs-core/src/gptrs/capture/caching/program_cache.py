"""Compiled programs by structure, compiled once however many threads ask for them."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from gptrs.capture.caching.miss_reasons import REASONS, MissReasons, Reason
from gptrs.capture.caching.program_key import ProgramKey
from gptrs.capture.fork_safe_lock import ForkSafeLock
from gptrs.disk_cache import bytes_setting
from gptrs.errors import UsageError
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


@dataclass(frozen=True, slots=True)
class Lookup(Generic[T]):
    """The answer of a cache."""

    value: T
    """The compiled program."""
    hit: bool
    """Whether it was cached, or another thread was just compiling it."""
    reason: Reason | None
    """Why it had to be compiled; None on a hit."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    answer: Lookup[T]
    """The answer to every hit, made once."""
    nbytes: int
    """The memory that it is estimated to take."""


def _measured(key: ProgramKey, value: T) -> _Entry[T]:
    """Return an entry with its size: literals, an estimate per instruction, and `value.nbytes`.

    `nbytes` is optional; anything but a positive int counts as 0.
    """
    reported: object = getattr(value, "nbytes", 0)
    own = reported if isinstance(reported, int) and reported > 0 else 0
    size = key.literal_bytes + key.instructions * BYTES_PER_INSTRUCTION + own
    return _Entry(Lookup(value, True, None), size)


class _Compilation(Generic[T]):
    """A program that a thread is compiling; others wait until it is `done`."""

    def __init__(self, reason: Reason) -> None:
        self.reason: Reason = reason
        self.done = threading.Event()
        self.made: _Entry[T] | None = None
        """None while it lasts, and if it failed."""
        self._thread = os.getpid(), threading.get_ident()

    @property
    def by_others(self) -> bool:
        """Whether another living thread compiles it: not this one, nor one lost in a fork."""
        process, thread = self._thread
        return process == os.getpid() and thread != threading.get_ident()


class ProgramCache(Generic[T]):
    """Maps the structure of a program to what it was compiled to. Safe between threads.

    The key is the structure itself, which is compared in full before the cache answers: two
    different programs never share an executable, whatever their digests are.

    The entries take at most `budget_bytes` (default: `GPTRS_PROGRAM_CACHE_BYTES`, else 512 MiB),
    and there are at most `capacity` of them; the least recently used go first. An entry counts with
    its literals, an estimate for each instruction, and the attribute `nbytes` of what is kept,
    where it has one: an int, the bytes that the executable holds of its own, such as packed
    weights. It is read once, after the compilation. What alone is over the budget is not kept.

    After a fork the child has the entries of its parent, and compiles anew what another thread of
    the parent was about to compile.
    """

    def __init__(self, budget_bytes: int | None = None, capacity: int = 1024) -> None:
        if capacity < 1 or (budget_bytes is not None and budget_bytes < 0):
            raise UsageError(
                "a program cache needs a capacity >= 1 and a budget >= 0,"
                f" got {capacity} and {budget_bytes}"
            )
        self._budget = budget_bytes
        self._capacity = capacity
        self._lock = ForkSafeLock()
        self._reset()

    def _reset(self) -> None:
        self._entries = OrderedDict[ProgramKey, _Entry[T]]()
        self._compiling = dict[ProgramKey, _Compilation[T]]()
        self._reasons = MissReasons()
        self._bytes = self._hits = self._evictions = self._refused = 0
        self._misses = Counter[Reason]()

    @property
    def budget_bytes(self) -> int:
        """The most bytes that the entries may take; UsageError for a bad environment variable."""
        if self._budget is None:
            self._budget = _budget_of_environment()
        return self._budget

    def find_or_compile(self, key: ProgramKey, compile: Callable[[Reason], T]) -> Lookup[T]:
        """Return the program under `key`, else the result of `compile(reason of the miss)`.

        Of several threads that miss one key at once, the first compiles and the others wait for
        it. If that fails, the error goes to the first alone, and the next one tries itself.
        Different keys are compiled in parallel.
        """
        budget = self.budget_bytes
        while True:
            with self._lock.inner:  # every flush comes by here: no Python call for the lock
                found = self._entries.get(key)
                if found is not None:
                    self._entries.move_to_end(key)
                    self._hits += 1
                    return found.answer
                compilation = self._compiling.get(key)
                # A thread that needs the program while it compiles it must not wait for itself.
                if compilation is None or not compilation.by_others:
                    mine = _Compilation[T](self._reasons.explain(key))
                    self._misses[mine.reason] += 1
                    self._compiling[key] = mine
                    break
            compilation.done.wait()
            with self._lock:
                if compilation.made is not None:
                    self._hits += 1
                    return compilation.made.answer
        return Lookup(self._compile(key, compile, mine, budget), False, mine.reason)

    def clear(self) -> None:
        """Forget every program and start counting anew."""
        with self._lock:
            # What is being compiled now goes to those who wait for it, and is not kept.
            old = self._entries
            self._reset()
        del old  # outside of the lock, since an executable may do anything when it goes

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

    def _compile(
        self,
        key: ProgramKey,
        compile: Callable[[Reason], T],
        mine: _Compilation[T],
        budget: int,
    ) -> T:
        dropped: list[_Entry[T]] = []
        try:
            made = _measured(key, compile(mine.reason))
            with self._lock:
                mine.made = made
                if self._compiling.get(key) is mine:  # else the cache was cleared meanwhile
                    dropped = self._keep(key, made, budget)
        finally:
            with self._lock:
                if self._compiling.get(key) is mine:
                    del self._compiling[key]
            mine.done.set()
        dropped.clear()  # outside of the lock, as in `clear`
        return made.answer.value

    def _keep(self, key: ProgramKey, entry: _Entry[T], budget: int) -> list[_Entry[T]]:
        """Add an entry, unless it alone is over `budget`; return what had to go to make room."""
        if entry.nbytes > budget:
            self._refused += 1
            self._reasons.refuse(key)
            return []
        self._entries[key] = entry
        self._reasons.add(key)
        self._bytes += entry.nbytes
        dropped: list[_Entry[T]] = []
        while self._bytes > budget or len(self._entries) > self._capacity:
            oldest, gone = self._entries.popitem(last=False)
            self._reasons.drop(oldest)
            self._bytes -= gone.nbytes
            self._evictions += 1
            dropped.append(gone)
        return dropped


def _budget_of_environment() -> int:
    hint = f"unset it to keep compiled programs of {DEFAULT_BUDGET} bytes"
    stated = bytes_setting(VARIABLE, hint)
    return DEFAULT_BUDGET if stated is None else stated
