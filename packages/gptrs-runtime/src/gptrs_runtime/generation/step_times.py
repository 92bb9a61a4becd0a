"""How long steps take by their number of rows, as measured while they run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

_KEPT: Final = 8
_TRUSTED: Final = 2
"""Samples that a number of rows needs: the first step of a kind may have compiled something."""
_LIFETIME: Final = 512
"""Steps after which a sample counts no more: the machine may have other things to do by now."""
_UNKNOWN_ROW: Final = 0.04
"""Cost of one more row before it is measured, in steps of one row."""


class StepTimes:
    """Seconds of steps by rows: the shortest of the last samples, since others only add to them."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[int, float]]] = {}
        self._steps = 0
        self._known: dict[int, float] = {}

    def record(self, rows: int, seconds: float) -> None:
        """Take in that a step of `rows` rows took so long."""
        self._steps += 1
        samples = self._samples.setdefault(rows, deque(maxlen=_KEPT))
        samples.append((self._steps, seconds))
        if self._steps % _LIFETIME == 0:
            self._forget()
        if len(samples) >= _TRUSTED:
            self._known[rows] = min(seconds for _, seconds in samples)

    def estimate(self, rows: int) -> float | None:
        """Return the seconds of a step of `rows` rows; None while nothing has been measured.

        No step takes longer than one of more rows: what was measured while the machine was busy
        with other things counts no more then.
        """
        sizes = sorted(self._known)
        if not sizes:
            return None
        place = bisect_left(sizes, rows)
        seconds = [self._known[size] for size in sizes]
        if place == len(sizes):
            return seconds[-1] + (rows - sizes[-1]) * _UNKNOWN_ROW * min(seconds)
        above = min(seconds[place:])
        if place == 0 or sizes[place] == rows:
            return above
        below = min(seconds[place - 1 :])
        share = (rows - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return below * (1 - share) + above * share

    def _forget(self) -> None:
        for rows, samples in list(self._samples.items()):
            while samples and samples[0][0] <= self._steps - _LIFETIME:
                samples.popleft()
            if len(samples) < _TRUSTED:
                self._known.pop(rows, None)
