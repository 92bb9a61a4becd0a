"""The worker threads of this process: Python threads that stay in compiled code without the GIL."""

from __future__ import annotations

import atexit
import threading

import numpy as np

from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.codegen.tasks import (
    STATE_WORDS,
    run_tasks_kernel,
    stop_kernel,
    worker_kernel,
)
from gptrs_backend_numba.memory import address_of, aligned


class Pool:
    """Workers that wait for jobs; see `gptrs_backend_numba.codegen.tasks`.

    Only one thread may run a job at a time.
    """

    def __init__(self) -> None:
        self._state = aligned(8 * STATE_WORDS)
        self._state[:] = np.zeros(8 * STATE_WORDS, np.uint8)
        self._workers: list[threading.Thread] = []

    @property
    def address(self) -> int:
        """Where the shared state lies: the first argument of `run_tasks`."""
        return address_of(self._state)

    def grow(self, threads: int) -> None:
        """Have at least `threads - 1` workers beside the calling thread."""
        while len(self._workers) < threads - 1:
            number = len(self._workers) + 1
            worker = threading.Thread(
                target=compiled(worker_kernel),
                args=(self.address, number),
                name=f"gptrs-numba-{number}",
                daemon=True,
            )
            worker.start()
            self._workers.append(worker)
            if number == 1:
                # The interpreter frees compiled code when it ends; nobody may be in it by then.
                atexit.register(self._stop, compiled(stop_kernel))

    def forget_workers(self) -> None:
        """Begin anew in a forked child, which has none of the threads; nothing runs meanwhile."""
        self._state[:] = 0
        self._workers = []

    def _stop(self, stop: Kernel) -> None:
        stop(self.address)
        for worker in self._workers:
            worker.join(timeout=1.0)


def run_tasks() -> Kernel:
    """Return the kernel that runs a job; compiled on first use."""
    return compiled(run_tasks_kernel)


POOL = Pool()
"""The workers of this process."""
