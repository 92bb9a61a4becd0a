"""Intervals of a profile as they end, and the time of each that no inner one took."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Literal

from msgspec import Struct

Kind = Literal["span", "compile", "run", "kernel"]
MOST_INTERVALS = 200_000
"""Intervals that are kept one by one; later ones are only added up."""


class Interval(Struct, frozen=True):
    """A piece of work: `started` in seconds of `time.perf_counter`, `program` by its number."""

    kind: Kind
    name: str
    detail: str
    started: float
    seconds: float
    thread: int
    program: int | None = None
    layer: str = ""


class Timeline:
    """The intervals of a profile; intervals of a thread nest, and an inner one ends first.

    Not safe between threads: the caller holds a lock.
    """

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self.left_out = 0
        """Intervals beyond `MOST_INTERVALS`."""
        self.thread = threading.get_ident()
        """The thread that started the profile; `own` adds up its time."""
        self.own: dict[tuple[Kind, str], float] = defaultdict(float)
        """Seconds by kind and name, without those of inner intervals."""
        self._inner: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """Start and seconds of the outermost intervals so far, by thread."""

    def add(self, interval: Interval) -> None:
        """Add an interval that has just ended."""
        if len(self.intervals) < MOST_INTERVALS:
            self.intervals.append(interval)
        else:
            self.left_out += 1
        inner, own = self._inner[interval.thread], interval.seconds
        while inner and inner[-1][0] >= interval.started:
            own -= inner.pop()[1]
        inner.append((interval.started, interval.seconds))
        if interval.thread == self.thread:
            self.own[interval.kind, interval.name] += max(0.0, own)
