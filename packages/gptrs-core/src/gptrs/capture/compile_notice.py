"""Reports on standard error that Python or a notebook waits for a backend to compile. Prints one
line for a wait of more than a second, only on a terminal or in IPython. Programs that show
compilations themselves turn it off in `gptrs.progress`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from gptrs.backend.contract import Backend
from gptrs.progress import NOTICES

_PATIENCE_S = 1.0
"""Seconds of compiling before a notice appears."""


class CompileNotices:
    """The notices of this process."""

    def __init__(self) -> None:
        self._waited = 0.0
        """Seconds that the process has spent compiling so far: many short waits add up."""

    @contextmanager
    def during(self, backend: Backend) -> Generator[None]:
        """Scope in which `backend` compiles a program; a timer thread prints a notice if it takes
        long."""
        stream = sys.stderr
        if not NOTICES.are_shown or not _somebody_looks(stream):
            yield
            return
        notice = _Notice(stream, backend.name, max(0.0, _PATIENCE_S - self._waited))
        if not backend.tells_kernels:
            notice.start()
        told = backend.compiling(notice.kernel) if backend.tells_kernels else nullcontext()
        try:
            with told:
                yield
        finally:
            self._waited += notice.end()


COMPILE_NOTICES = CompileNotices()
"""The notices of this process."""


def _somebody_looks(stream: TextIO | None) -> bool:
    if stream is None or stream.closed:
        return False
    if stream.isatty():
        return os.environ.get("TERM") != "dumb"
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


class _Notice:
    """The line about one compilation: started when it takes long, completed at the end."""

    def __init__(self, stream: TextIO, backend: str, patience: float) -> None:
        self._stream = stream
        self._backend = backend
        self._timer = threading.Timer(patience, self._speak)
        self._timer.daemon = True
        self._started: float | None = None
        self._kernels = 0
        self._lock = threading.Lock()
        self._has_spoken = self._is_over = False

    def start(self) -> None:
        """Start the timer."""
        self._started = time.monotonic()
        self._timer.start()

    def kernel(self, number: int, total: int | None) -> None:
        """Note that a kernel is being compiled; programs with cached kernels never get here."""
        self._kernels = number
        if self._started is None:
            self.start()

    def end(self) -> float:
        """Finish the line, if there is one; return the seconds waited."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
        if self._started is None:
            return 0.0
        seconds = time.monotonic() - self._started
        if self._has_spoken:
            count = f" {self._kernels} of them," if self._kernels else ""
            self._write(f"{count} {seconds:.1f} s\n")
        return seconds

    def _speak(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._has_spoken = True
            what = "kernels" if self._kernels else "a program"
            self._write(f"gptrs: backend `{self._backend}` compiles {what} once ...")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader of the stream is gone
            pass
