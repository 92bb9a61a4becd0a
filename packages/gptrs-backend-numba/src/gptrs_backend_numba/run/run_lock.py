"""The lock under which programs run: one at a time; it takes care of forks, too."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np

from gptrs.backend.mapped_files import COUNT, MAPPED_FILES, NEW, RUNNING
from gptrs.errors import ExecutionError
from gptrs_backend_numba.codegen.compiled import COMPILING
from gptrs_backend_numba.codegen.read_faults import handle_read_faults
from gptrs_backend_numba.memory import address_of, aligned
from gptrs_backend_numba.pool import POOL

_PATIENCE_S = 5.0
"""The longest that a fork waits for a program that another thread runs."""


class RunLock:
    """Serializes all runs of one process, which share the workers and the scratch memory.

    A fork waits until no program runs and no kernel is compiled: the child then starts workers of
    its own. One that did not wait long enough has no usable backend: to take the lock there raises
    ExecutionError.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_quiet = False
        self._is_lost = False
        self._files = MAPPED_FILES.table
        self._scratch = np.empty(0, np.uint8)
        self._scratch_address = address_of(self._scratch)

    def claim(self) -> None:
        """Get ready to run programs; ExecutionError in a child forked while one ran."""
        if self._is_lost:
            raise ExecutionError(
                "the `numba` backend cannot work in a process that was forked while a program ran"
                f" for more than {_PATIENCE_S:g} s",
                hint='start workers by the "spawn" method, or fork before programs run',
            )
        if MAPPED_FILES.table[COUNT]:
            handle_read_faults()

    def __enter__(self) -> None:
        if self._is_lost:
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

    def before_fork(self) -> None:
        """Wait until nothing runs and nothing is compiled, in the order in which runs compile."""
        self._is_quiet = self._lock.acquire(timeout=_PATIENCE_S)
        if self._is_quiet and not COMPILING.acquire(timeout=_PATIENCE_S):
            self._lock.release()
            self._is_quiet = False

    def after_fork(self) -> None:
        """Go on in the parent."""
        if self._is_quiet:
            COMPILING.release()
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin without the workers of the parent; refuse all if it was not quiet."""
        self._is_lost = self._is_lost or not self._is_quiet
        POOL.forget_workers()
        self.after_fork()

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
os.register_at_fork(
    before=RUN_LOCK.before_fork,
    after_in_parent=RUN_LOCK.after_fork,
    after_in_child=RUN_LOCK.after_fork_in_child,
)
