"""The gate through which programs run: one at a time, in the process that owns the workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from gptrs.errors import ExecutionError
from gptrs_backend_numba.memory import aligned
from gptrs_backend_numba.pool import POOL


class Engine:
    """Serializes all runs of one process: they share the workers and the scratch memory.

    A forked child has neither the workers nor a usable lock, so it is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._scratch = np.empty(0, np.uint8)

    def claim(self) -> None:
        """Note that this process uses the engine; ExecutionError in a child forked after that."""
        process = os.getpid()
        if self._owner not in (None, process):
            raise ExecutionError(
                "the `numba` backend cannot work in a process forked from one that has used it",
                hint='start workers by the "spawn" method, or fork before the first program',
            )
        self._owner = process

    @contextmanager
    def entered(self, threads: int) -> Generator[None, None, None]:
        """Hold the engine, with `threads` threads at hand."""
        self.claim()
        with self._lock:
            POOL.grow(threads)
            yield

    def scratch(self, nbytes: int) -> np.ndarray:
        """At least `nbytes` of memory, the same until more is needed; for who holds the engine."""
        if self._scratch.nbytes < nbytes:
            self._scratch = aligned(nbytes)
        return self._scratch


ENGINE = Engine()
"""The engine of this process, shared by all backends and executables."""
