"""Compiled programs by structure, with a budget of bytes and the reasons for misses."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeVar, get_args

from msgspec import Struct
from typing_extensions import override

from gptrs.capture.caching.program_key import ASPECTS, Aspect, ProgramKey
from gptrs.disk_cache import bytes_setting
from gptrs.errors import UsageError
from gptrs.memory_cache import MemoryCache

# The reason why a program had to be compiled: how it differs from the cached programs.


Reason = Literal["first", "evicted"] | Aspect
"""Why no executable was cached; see `MissReasons.explain`."""

REASONS: tuple[Reason, ...] = ("first", "evicted", *get_args(Aspect))
"""All reasons."""

_REMEMBERED = 4096
"""Most digests of evicted programs that are remembered."""


class MissReasons:
    """Indexes cached programs by fingerprints, to avoid comparing with each of them.

    A fingerprint is a hash of some aspects of a key. A collision gives a wrong reason, nothing
    worse. Not thread-safe: the cache holds its lock.
    """

    def __init__(self) -> None:
        self._fingerprints = Counter[int]()
        self._dropped = OrderedDict[int, None]()

    def add(self, key: ProgramKey) -> None:
        """Note that a program is now cached under `key`."""
        self._fingerprints.update(_fingerprints(key.hashes))
        self._dropped.pop(key.digest, None)

    def drop(self, key: ProgramKey) -> None:
        """Note that the program under `key` was evicted."""
        for fingerprint in _fingerprints(key.hashes):
            self._fingerprints[fingerprint] -= 1
            if self._fingerprints[fingerprint] <= 0:
                del self._fingerprints[fingerprint]
        self.refuse(key)

    def refuse(self, key: ProgramKey) -> None:
        """Note that the program under `key` was compiled but is too large to keep."""
        self._dropped[key.digest] = None
        while len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)

    def explain(self, key: ProgramKey) -> Reason:
        """Return why no program is cached under `key`: the first of these reasons that applies.

        1. "evicted": it was compiled, but evicted since or too large to keep.
        2. "first": no program is cached at all.
        3. If some program differs in a single aspect, that aspect. If several do, in different
           aspects, the least structural of them.
        4. Otherwise the first difference, in the order of `ASPECTS`, from the programs that agree
           in the most leading aspects. A longer input usually changes shapes, attributes and
           literals, and the reason is "shape".
        """
        if key.digest in self._dropped:
            return "evicted"
        if not self._fingerprints:
            return "first"
        known = self._fingerprints
        # From the least structural aspect on: of several reasons, the one that is easiest to change
        # is told.
        for position in reversed(range(len(ASPECTS))):
            if _without(key.hashes, position) in known:
                return ASPECTS[position]
        return ASPECTS[_agreeing(key.hashes, known)]


def _agreeing(hashes: Sequence[int], known: Counter[int]) -> int:
    """Return how many leading aspects some program shares with these."""
    count = 0
    while count < len(hashes) - 1 and _prefix(hashes, count + 1) in known:
        count += 1
    return count


def _fingerprints(hashes: Sequence[int]) -> Iterator[int]:
    """Return digests of all aspects but one, for each aspect, and of the first n aspects, for each
    n."""
    for position in range(len(hashes)):
        yield _without(hashes, position)
    for count in range(1, len(hashes)):
        yield _prefix(hashes, count)


def _without(hashes: Sequence[int], position: int) -> int:
    return hash(("without", position, *hashes[:position], *hashes[position + 1 :]))


def _prefix(hashes: Sequence[int], count: int) -> int:
    return hash(("first", *hashes[:count]))


T = TypeVar("T")

VARIABLE = "GPTRS_PROGRAM_CACHE_BYTES"
"""The environment variable with the budget in bytes of caches created without one."""

DEFAULT_BUDGET = 512 << 20
"""Default capacity of a cache in bytes."""

BYTES_PER_INSTRUCTION = 1024
"""Estimated bytes per instruction. Generous: the key and the executables of our backends take about
600."""


class CacheStatistics(Struct, frozen=True):
    """Counts since the cache was created or cleared, and its current contents."""

    hits: int
    misses: int
    entries: int
    bytes: int
    """Estimated memory of the entries."""
    evictions: int
    """Entries that were dropped to make room."""
    refused: int
    """Programs that were not kept because they exceeded the budget on their own."""
    misses_by_reason: Mapping[Reason, int]
    """Misses by reason, all reasons listed; see `MissReasons.explain`."""


class ProgramCache(MemoryCache[ProgramKey, T, Reason]):
    """Maps the structure of a program to its executable.

    The key is the structure itself, which is compared in full before a hit: two different programs
    never share an executable, even if their digests collide.

    The entries take at most `budget_bytes` (default: `GPTRS_PROGRAM_CACHE_BYTES`, else 512 MiB).
    An entry counts with its literals, an estimate for each instruction, and the attribute `nbytes`
    of the executable, if it has one: the bytes that it owns, such as packed weights. It is read
    once, after the compilation.
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
        """Return the counts since the cache was created or cleared, and its current contents."""
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
