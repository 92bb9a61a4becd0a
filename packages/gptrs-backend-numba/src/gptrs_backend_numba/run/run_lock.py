"""The lock under which programs run: one at a time, in the process that owns the workers."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np

from gptrs.backend.mapped_files import COUNT, MAPPED_FILES, NEW, RUNNING
from gptrs.errors import ExecutionError
from gptrs_backend_numba.codegen.read_faults import handle_read_faults
from gptrs_backend_numba.memory import address_of, aligned


class RunLock:
    """Serializes all runs of one process, which share the workers and the scratch memory.

    A forked child has neither the workers nor a usable lock: taking it there raises ExecutionError.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._files = MAPPED_FILES.table
        self._scratch = np.empty(0, np.uint8)
        self._scratch_address = address_of(self._scratch)

    def claim(self) -> None:
        """Make this process the owner; ExecutionError in a child forked from the owner."""
        process = os.getpid()
        if self._owner not in (None, process):
            raise ExecutionError(
                "the `numba` backend cannot work in a process forked from one that has used it",
                hint='start workers by the "spawn" method, or fork before the first program',
            )
        self._owner = process
        if MAPPED_FILES.table[COUNT]:
            handle_read_faults()

    def __enter__(self) -> None:
        if self._owner != os.getpid():
            self.claim()
        self._lock.acquire()
        self._files[NEW] = 0
        self._files[RUNNING] = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files[RUNNING] = 0
        self._lock.release()

    def scratch(self, nbytes: int) -> int:
        """Return the address of at least `nbytes` of memory, valid until more is needed.

        The caller holds the lock.
        """
        if self._scratch.nbytes < nbytes:
            # Half as much again, for programs of many sizes: memory that nobody touches is free.
            self._scratch = aligned(max(nbytes, self._scratch.nbytes * 3 // 2))
            self._scratch_address = address_of(self._scratch)
        return self._scratch_address

    def fill(self, byte: int) -> None:
        """Overwrite all scratch memory; the caller holds the lock."""
        self._scratch.fill(byte)


RUN_LOCK = RunLock()
"""The lock of this process, shared by all backends and executables."""
