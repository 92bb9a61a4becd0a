"""Why a program had to be compiled: what it differs in from the programs that are kept."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from gptrs.capture.caching.program_key import ASPECTS, Aspect, ProgramKey

Reason = Literal["first", "evicted"] | Aspect
"""Why there was no executable; see `MissReasons.explain`."""

REASONS: tuple[Reason, ...] = ("first", "evicted", *get_args(Aspect))
"""All reasons."""

_REMEMBERED = 4096
"""Dropped programs remembered, by digest."""


class MissReasons:
    """Knows the kept programs by fingerprints, so that a look at each of them is not needed.

    A fingerprint is a hash of some aspects of a key. Hashes that collide give a wrong reason, and
    nothing worse. Not safe between threads: the cache holds its lock.
    """

    def __init__(self) -> None:
        self._fingerprints = Counter[int]()
        self._dropped = OrderedDict[int, None]()

    def add(self, key: ProgramKey) -> None:
        """Note that a program is now cached under `key`."""
        self._fingerprints.update(_fingerprints(key.hashes))
        self._dropped.pop(key.digest, None)

    def drop(self, key: ProgramKey) -> None:
        """Note that the program under `key` was dropped."""
        for fingerprint in _fingerprints(key.hashes):
            self._fingerprints[fingerprint] -= 1
            if self._fingerprints[fingerprint] <= 0:
                del self._fingerprints[fingerprint]
        self.refuse(key)

    def refuse(self, key: ProgramKey) -> None:
        """Note that the program under `key` was compiled, and is too large to keep."""
        self._dropped[key.digest] = None
        while len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)

    def explain(self, key: ProgramKey) -> Reason:
        """Return why no program is cached under `key`; the first of these that holds.

        1. "evicted": one was compiled, and dropped since or too large to be kept.
        2. "first": no program is kept at all.
        3. Some program differs in a single aspect: that one. Where several programs do, each in
           another aspect, the least structural of these.
        4. Of the programs that agree in the most aspects, counted from the structure on until the
           first difference (see `ASPECTS` for the order): that first difference. A longer input
           as a rule changes shapes, attributes and literals, and the reason is "shape".
        """
        if key.digest in self._dropped:
            return "evicted"
        if not self._fingerprints:
            return "first"
        known = self._fingerprints
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
    """Digests of all aspects but one, for each, and of the first n aspects, for each n."""
    for position in range(len(hashes)):
        yield _without(hashes, position)
    for count in range(1, len(hashes)):
        yield _prefix(hashes, count)


def _without(hashes: Sequence[int], position: int) -> int:
    return hash(("without", position, *hashes[:position], *hashes[position + 1 :]))


def _prefix(hashes: Sequence[int], count: int) -> int:
    return hash(("first", *hashes[:count]))
