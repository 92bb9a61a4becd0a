"""The trace sink of `GPTRS_PASS_STATS=1`: a table of what each pass did, at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from typing_extensions import override

from gptrs.capture.events.trace import ExecutionTraceSink, PassEvent, install
from gptrs.quick_dataclass import dataclass


@dataclass(slots=True)
class PassTotals:
    """Sums over all applications of one pass in one stage."""

    applied: int = 0
    changed: int = 0
    removed: int = 0
    """Instructions before less instructions after, in all."""
    seconds: float = 0.0


class PassStatistics(ExecutionTraceSink):
    """A sink that adds up the pass events of every program; safe between threads."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], PassTotals] = {}
        self._lock = threading.Lock()

    @override
    def after_pass(self, event: PassEvent) -> None:
        with self._lock:
            totals = self._totals.setdefault((event.stage, event.name), PassTotals())
            totals.applied += 1
            totals.changed += event.changed
            totals.removed += event.before - event.after
            totals.seconds += event.seconds

    def table(self) -> str:
        """Return a line a pass: stage, name, times applied, changed, removed instructions, ms."""
        with self._lock:
            rows = list(self._totals.items())
        lines = [f"{'stage':14}{'pass':28}{'applied':>9}{'changed':>9}{'removed':>9}{'ms':>10}"]
        lines += [
            f"{stage:14}{name:28}{totals.applied:9}{totals.changed:9}{totals.removed:9}"
            f"{1000 * totals.seconds:10.1f}"
            for (stage, name), totals in rows
        ]
        return "\n".join(lines)


_installed: list[PassStatistics] = []
_lock = threading.Lock()


def install_if_asked() -> None:
    """Install the sink once if `GPTRS_PASS_STATS` is set; print the table to stderr at exit."""
    if _installed or os.environ.get("GPTRS_PASS_STATS", "") in ("", "0"):
        return
    with _lock:
        if not _installed:
            statistics = PassStatistics()
            _installed.append(statistics)
            install(statistics)
            atexit.register(lambda: print(statistics.table(), file=sys.stderr))
