"""A thread of the lowest priority that writes files while programs run, and at exit for a while."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Job = Callable[[Callable[[], bool]], None]
"""Is told how to ask whether it should stop, and raises nothing."""

_QUIET_S = 0.3
"""Nothing is written until so long after the last job came: first programs get their weights."""
_LOWEST = 19


class BackgroundWriter:
    """Runs jobs one at a time, the newest first, whose weights are most likely still in memory.

    Lasting jobs wait until all others are done.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lasting: list[Job] = []
        self._added = 0.0
        self._hurry = False
        self._stop = False
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, job: Job, *, lasting: bool = False) -> None:
        """Have the thread do `job` later; one that is `lasting` is left when the process ends."""
        with self._changed:
            (self._lasting if lasting else self._jobs).append(job)
            self._added = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="gptrs-weights", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all jobs but lasting ones are done, at most for so many seconds."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._jobs or self._busy), seconds)
            self._hurry = False

    def end(self, seconds: float) -> None:
        """`finish`, then have the thread stop; for the exit of the process. Ctrl-C ends it."""
        if self._thread is None or self._process != os.getpid():
            return
        with suppress(KeyboardInterrupt):
            self.finish(seconds)
        self._stop = True
        with self._changed:
            self._changed.notify_all()
        self._thread.join(0.5)

    def _serve(self) -> None:
        _lower_priority()
        while (job := self._next()) is not None:
            job(lambda: self._stop)
            del job
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """Wait for the next job and return it; None to stop."""
        with self._changed:
            while not self._stop:
                wait = self._added + _QUIET_S - time.monotonic()
                jobs = self._jobs or self._lasting
                if jobs and (wait <= 0 or (self._hurry and jobs is self._jobs)):
                    self._busy = jobs is self._jobs
                    return jobs.pop()
                self._changed.wait(max(wait, 0) if jobs else None)
            return None


def _lower_priority() -> None:
    """Give way to all other threads, where the system has priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
