"""An in-memory cache for values that are slow to make: each is made once, however many threads
ask."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, cast

from msgspec import Struct
from typing_extensions import TypeVar

from gptrs.fork_safe_lock import ForkSafeLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R", default=None)


class Lookup(Struct, Generic[V, R], frozen=True):
    """The result of a lookup."""

    value: V
    hit: bool
    """Whether it was cached, or another thread was already making it."""
    reason: R | None
    """The reason for a miss, see `MemoryCache.reason_of`; None on a hit."""


class _Entry(Struct, Generic[V, R], frozen=True):
    answer: Lookup[V, R]
    """The shared `Lookup` of every hit."""
    nbytes: int


class _Making(Generic[V, R]):
    """A value that a thread is making; other threads wait for `done`."""

    def __init__(self, reason: R, budget: float) -> None:
        self.reason = reason
        self.budget = budget
        self.done = threading.Event()
        self.made: _Entry[V, R] | None = None
        """None until it is made, and if making it failed."""
        self._thread = os.getpid(), threading.get_ident()

    @property
    def by_others(self) -> bool:
        """Whether another live thread is making it, not this one nor one lost in a fork."""
        process, thread = self._thread
        return process == os.getpid() and thread != threading.get_ident()


class MemoryCache(Generic[K, V, R]):
    """Maps keys to the values made for them. Safe between threads.

    Holds at most `capacity` entries; the least recently used are evicted first. A subclass may set
    a budget of bytes, give the reason for a miss (`R`, None here), and observe insertions and
    evictions: these methods run while the lock is held, and must neither take another lock nor
    fail, except `budget_bytes`.

    After a fork the child keeps its parent's entries, and itself makes the values that other
    threads of the parent were making.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = ForkSafeLock()
        self._reset()

    def _reset(self) -> None:
        self._entries = OrderedDict[K, _Entry[V, R]]()
        self._making = dict[K, _Making[V, R]]()
        self._bytes = self._hits = self._evictions = self._refused = 0

    @property
    def budget_bytes(self) -> float:
        """Return the limit of the entries' total bytes."""
        return math.inf

    def size_of(self, key: K, value: V) -> int:
        """Return the estimated size of an entry in bytes."""
        return 0

    def reason_of(self, key: K) -> R:
        """Return why there is no entry for a requested key."""
        return cast("R", None)

    def added(self, key: K) -> None:
        """Handle the insertion of an entry."""

    def dropped(self, key: K, *, refused: bool) -> None:
        """Handle the eviction of an entry, or its refusal (`refused`) for exceeding the budget."""

    def find_or_make(self, key: K, make: Callable[[R], V]) -> Lookup[V, R]:
        """Return the value under `key`, else the result of `make(reason of the miss)`.

        If several threads miss a key, the first makes the value and the others wait. If that fails,
        only the first gets the error, and the next one tries itself. Values of different keys are
        made in parallel. A value that exceeds the budget on its own is not kept.
        """
        while True:
            with self._lock.inner:  # every flush passes here: no Python call for the lock
                found = self._entries.get(key)
                if found is not None:
                    self._entries.move_to_end(key)
                    self._hits += 1
                    return found.answer
                making = self._making.get(key)
                # A thread that needs the value while it makes it must not wait for itself.
                if making is None or not making.by_others:
                    budget = self.budget_bytes
                    mine = _Making[V, R](self.reason_of(key), budget)
                    self._making[key] = mine
                    break
            making.done.wait()
            with self._lock:
                if making.made is not None:
                    self._hits += 1
                    return making.made.answer
        return Lookup(self._make(key, make, mine), False, mine.reason)

    def find(self, key: K) -> V | None:
        """Return the value under `key`, None if there is none."""
        with self._lock.inner:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return found.answer.value

    def keep(self, key: K, value: V) -> V:
        """Keep a value and return it; if another thread kept one meanwhile, return that one."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                return found.answer.value
            entry = _Entry(Lookup[V, R](value, True, None), self.size_of(key, value))
            dropped = self._add(key, entry, self.budget_bytes)
        dropped.clear()  # outside of the lock, as in `clear`
        return value

    def values(self) -> list[V]:
        """Return all values, the least recently used first."""
        with self._lock:
            return [entry.answer.value for entry in self._entries.values()]

    def clear(self) -> None:
        """Drop all entries and reset the counts."""
        with self._lock:
            # A value in the making goes to the waiting threads but is not kept.
            old = self._entries
            self._reset()
        del old  # outside the lock, since an executable may run anything when it is freed

    def _make(self, key: K, make: Callable[[R], V], mine: _Making[V, R]) -> V:
        dropped: list[_Entry[V, R]] = []
        try:
            value = make(mine.reason)
            made = _Entry(Lookup[V, R](value, True, None), self.size_of(key, value))
            with self._lock:
                mine.made = made
                if self._making.get(key) is mine:  # else the cache was cleared meanwhile
                    dropped = self._add(key, made, mine.budget)
        finally:
            # Also after an error: the waiting threads must go on, and one of them tries itself.
            with self._lock:
                if self._making.get(key) is mine:
                    del self._making[key]
            mine.done.set()
        dropped.clear()  # outside of the lock, as in `clear`
        return value

    def _add(self, key: K, entry: _Entry[V, R], budget: float) -> list[_Entry[V, R]]:
        """Add an entry, unless it alone exceeds `budget`; return the evicted entries."""
        if entry.nbytes > budget:
            self._refused += 1
            self.dropped(key, refused=True)
            return []
        self._entries[key] = entry
        self.added(key)
        self._bytes += entry.nbytes
        dropped: list[_Entry[V, R]] = []
        while self._bytes > budget or len(self._entries) > self.capacity:
            oldest, gone = self._entries.popitem(last=False)
            self.dropped(oldest, refused=False)
            self._bytes -= gone.nbytes
            self._evictions += 1
            dropped.append(gone)
        return dropped
