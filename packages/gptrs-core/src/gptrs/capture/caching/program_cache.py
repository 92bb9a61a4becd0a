"""Compiled programs by structure, compiled once however many threads ask for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gptrs.capture.caching.miss_reasons import Reason
from gptrs.capture.caching.program_key import ProgramKey
from gptrs.capture.caching.program_store import CacheStatistics, Entry, ProgramStore, measured
from gptrs.capture.fork_safe_lock import ForkSafeLock
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass

T = TypeVar("T")

VARIABLE = "GPTRS_PROGRAM_CACHE_BYTES"
"""The environment variable with the budget of caches that are made without one."""

DEFAULT_BUDGET = 512 << 20
"""Bytes that a cache keeps unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Lookup(Generic[T]):
    """The answer of a cache."""

    value: T
    """The compiled program."""
    hit: bool
    """Whether it was cached, or another thread was just compiling it."""
    reason: Reason | None
    """Why it had to be compiled; None on a hit."""


class _Compilation(Generic[T]):
    """A program that a thread is compiling; others wait until it is `done`."""

    def __init__(self, reason: Reason) -> None:
        self.reason: Reason = reason
        self.done = threading.Event()
        self.made: Entry[T] | None = None
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
        self._store = ProgramStore[T]()
        self._compiling = dict[ProgramKey, _Compilation[T]]()

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
            with self._lock:
                found = self._store.find(key)
                if found is not None:
                    return self._hit(found)
                compilation = self._compiling.get(key)
                # A thread that needs the program while it compiles it must not wait for itself.
                if compilation is None or not compilation.by_others:
                    mine = _Compilation[T](self._store.count_miss(key))
                    self._compiling[key] = mine
                    break
            compilation.done.wait()
            with self._lock:
                if compilation.made is not None:
                    return self._hit(compilation.made)
        return Lookup(self._compile(key, compile, mine, budget), False, mine.reason)

    def clear(self) -> None:
        """Forget every program and start counting anew."""
        with self._lock:
            # What is being compiled now goes to those who wait for it, and is not kept.
            old, self._store, self._compiling = self._store, ProgramStore[T](), {}
        del old  # outside of the lock, since an executable may do anything when it goes

    @property
    def statistics(self) -> CacheStatistics:
        """Counts since the cache was made or cleared, and what it holds."""
        with self._lock:
            return self._store.statistics()

    def _hit(self, found: Entry[T]) -> Lookup[T]:
        self._store.count_hit()
        return Lookup(found.value, True, None)

    def _compile(
        self,
        key: ProgramKey,
        compile: Callable[[Reason], T],
        mine: _Compilation[T],
        budget: int,
    ) -> T:
        dropped: list[Entry[T]] = []
        try:
            made = measured(key, compile(mine.reason))
            with self._lock:
                mine.made = made
                if self._compiling.get(key) is mine:  # else the cache was cleared meanwhile
                    dropped = self._store.keep(key, made, budget, self._capacity)
        finally:
            with self._lock:
                if self._compiling.get(key) is mine:
                    del self._compiling[key]
            mine.done.set()
        dropped.clear()  # outside of the lock, as in `clear`
        return made.value


def _budget_of_environment() -> int:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_BUDGET
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(
            f"`{VARIABLE}` must be a number of bytes, got `{text}`",
            hint=f"unset it to keep compiled programs of {DEFAULT_BUDGET} bytes",
        )
    return int(text)
