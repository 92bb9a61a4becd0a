"""`GPTRS_PASS_STATS=1`: what each pass did in this process, as a table at its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import dataclass

from gptrs.capture.events.trace import ExecutionTraceSink, PassEvent, install


@dataclass(slots=True)
class PassTotals:
    """Sums over all applications of one pass in one stage."""

    applied: int = 0
    changed: int = 0
    removed: int = 0
    """Instructions fewer after it than before, in all."""
    seconds: float = 0.0


class PassStatistics(ExecutionTraceSink):
    """Adds up the pass events of every program; safe between threads."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], PassTotals] = {}
        self._lock = threading.Lock()

    def after_pass(self, event: PassEvent) -> None:
        """Add one application."""
        with self._lock:
            totals = self._totals.setdefault((event.stage, event.name), PassTotals())
            totals.applied += 1
            totals.changed += event.changed
            totals.removed += event.before - event.after
            totals.seconds += event.seconds

    def table(self) -> str:
        """One line a pass: stage, name, times applied and changed, instructions removed, time."""
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
    """Start to count where `GPTRS_PASS_STATS` is set; the table goes to stderr at the end."""
    if _installed or os.environ.get("GPTRS_PASS_STATS", "") in ("", "0"):
        return
    with _lock:
        if not _installed:
            statistics = PassStatistics()
            _installed.append(statistics)
            install(statistics)
            atexit.register(lambda: print(statistics.table(), file=sys.stderr))
