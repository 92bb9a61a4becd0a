"""The gate through which programs run: one at a time, in the process that owns the workers."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np

from gptrs.errors import ExecutionError
from gptrs_backend_numba.memory import address_of, aligned


class Engine:
    """Serializes all runs of one process, in `with`: they share the workers and scratch memory.

    A forked child has neither the workers nor a usable lock, so it is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._scratch = np.empty(0, np.uint8)
        self._scratch_address = address_of(self._scratch)

    def claim(self) -> None:
        """Note that this process uses the engine; ExecutionError in a child forked after that."""
        process = os.getpid()
        if self._owner not in (None, process):
            raise ExecutionError(
                "the `numba` backend cannot work in a process forked from one that has used it",
                hint='start workers by the "spawn" method, or fork before the first program',
            )
        self._owner = process

    def __enter__(self) -> None:
        if self._owner != os.getpid():
            self.claim()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def scratch(self, nbytes: int) -> int:
        """Where at least `nbytes` of memory are, there until more is needed.

        For who holds the engine.
        """
        if self._scratch.nbytes < nbytes:
            self._scratch = aligned(nbytes)
            self._scratch_address = address_of(self._scratch)
        return self._scratch_address


ENGINE = Engine()
"""The engine of this process, shared by all backends and executables."""
