"""Compiled programs by structure, least recently used dropped first; safe between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from gptrs.backend.protocol import Executable


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """How often a program was found and how often one had to be compiled."""

    hits: int
    misses: int
    entries: int


class ProgramCache:
    """Maps a structural key to its executable.

    The key is the structure itself (see `GraphSlice.key`), not a digest of it: Python's dict
    compares it in full before it answers, so two different structures never share an executable.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, Executable] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0

    def find_or_compile(self, key: Hashable, compile: Callable[[], Executable]) -> Executable:
        """The executable stored under `key`, made by `compile` and kept if there was none.

        Two threads that miss at once both compile, and the first result is kept.
        """
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._hits += 1
                self._entries.move_to_end(key)
                return found
            self._misses += 1
        made = compile()
        with self._lock:
            kept = self._entries.setdefault(key, made)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return kept

    def clear(self) -> None:
        """Forget every executable and start counting anew."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    @property
    def statistics(self) -> CacheStatistics:
        """Hits and misses since the start or the last `clear`, and how many entries there are."""
        with self._lock:
            return CacheStatistics(self._hits, self._misses, len(self._entries))
