"""How long a child is waited for: on a busy machine it may take long without hanging."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Patience:
    """Tells whether the process `pid` hangs, whatever else keeps the machine busy.

    It hangs when it has used `seconds` of CPU time, or none at all for as long by the clock. Where
    the system does not tell what it used, `seconds` by the clock are all that it gets.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._used = 0.0
        self._moved = time.monotonic()

    def is_over(self) -> bool:
        """Return whether the process hangs, by what it has used since the last call."""
        used, now = _cpu_seconds(self._pid), time.monotonic()
        if used > self._used:
            self._used, self._moved = used, now
        return self._used > self._seconds or now - self._moved > self._seconds


def _cpu_seconds(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = status.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
