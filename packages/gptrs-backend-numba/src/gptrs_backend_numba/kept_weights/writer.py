"""A thread of the lowest priority that writes files while programs run, and at exit for a while."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

Job = Callable[[Callable[[], bool]], None]
"""Is told how to ask whether it should stop, and raises nothing."""

_QUIET_S = 0.3
"""Nothing is written until so long after the last job came: first programs get their weights."""
_LONG_QUIET_S = 20.0
"""The same for jobs that are not urgent: by then Linux has written most files to the disk."""
_LOWEST = 19
_CLEANUP_S = 0.5
"""The longest wait for a stopped job to remove its partial file."""


class BackgroundWriter:
    """Runs jobs one at a time, the newest first, whose weights are most likely still in memory.

    Jobs that are not `urgent` wait until nothing else was asked for in a while.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._later: list[Job] = []
        self._added = 0.0
        self._hurry = False
        self._stop = False
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def begin_anew(self) -> None:
        """Forget the thread and all jobs in a forked child: they are those of its parent."""
        self.__init__()

    def add(self, job: Job, *, urgent: bool = True) -> None:
        """Have the thread do `job`; one that is not `urgent` is left when the process ends."""
        with self._changed:
            (self._jobs if urgent else self._later).append(job)
            self._added = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="gptrs-weights", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all urgent jobs are done, at most for so many seconds."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._jobs or self._busy), seconds)
            self._hurry = False

    def end(self, seconds: float) -> None:
        """`finish`, then have the thread stop; for the exit of the process. Ctrl-C ends it."""
        if self._thread is None or self._process != os.getpid():
            return
        with suppress(KeyboardInterrupt), _interruptible():
            self.finish(seconds)
        self._stop = True
        with self._changed:
            self._changed.notify_all()
        if self._busy:
            self._thread.join(_CLEANUP_S)

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
                jobs, quiet = (
                    (self._jobs, 0 if self._hurry else _QUIET_S)
                    if self._jobs
                    else (self._later, _LONG_QUIET_S)
                )
                wait = self._added + quiet - time.monotonic()
                if jobs and wait <= 0:
                    self._busy = jobs is self._jobs
                    return jobs.pop()
                self._changed.wait(wait if jobs else None)
            return None


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end a wait, also where it is ignored by then, as at the end of a command."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _lower_priority() -> None:
    """Give way to all other threads, where the system has priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
