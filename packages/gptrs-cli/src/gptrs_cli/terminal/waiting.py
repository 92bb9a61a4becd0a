"""A status line with elapsed seconds, on a terminal, while something takes long."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from gptrs_cli.terminal.stderr import is_terminal, rich_output

if TYPE_CHECKING:
    from gptrs_cli.terminal.rich_output import LiveLine

_DELAY_S = 0.4
"""Seconds before the line appears, so that short waits do not flicker."""


class Waiting:
    """A line on a terminal that names the work in progress and counts its seconds.

    Use it as a context manager; `stop` ends it early and may be called again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._details = ""
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = False
        self._line: LiveLine | None = None
        self._timer = threading.Timer(_DELAY_S, self._appear)
        self._timer.daemon = True

    def __enter__(self) -> Waiting:
        if is_terminal(sys.stderr):
            self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def now(self, what: str) -> None:
        """Name the next work in progress, and restart its seconds."""
        self._what, self._details, self._started = what, "", time.monotonic()
        self._update()

    def add(self, details: str) -> None:
        """Replace the details after the name."""
        self._details = f", {details}"
        self._update()

    def stop(self) -> None:
        """Erase the line."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._line is not None:
                self._line.stop()
                self._line = None

    def _appear(self) -> None:
        output = rich_output()
        with self._lock:
            if not self._stopped:
                line: LiveLine = output.LiveLine(self._what + self._details, self._started)
                line.start()
                self._line = line

    def _update(self) -> None:
        with self._lock:
            if self._line is not None:
                self._line.show(self._what + self._details, self._started)
