"""How fast this machine reads and multiplies: loops that do nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels import probe
from gptrs_backend_numba.memory import address_of, aligned
from gptrs_backend_numba.pool import POOL, run_tasks
from gptrs_backend_numba.run.run_lock import RUN_LOCK

_BLOCK = 4 << 20
"""Bytes that a thread reads at a time."""
_BLOCKS = 64
"""Together larger than any cache of a processor."""
_STEPS = 4_000_000
_ROUNDS = 7


class MeasuringThreads:
    """The part of the backend that measures the machine, with the threads of the backend."""

    threads: int

    def read_bytes_per_s(self) -> float:
        """Return the best of several passes over 256 MiB."""
        array = aligned(_BLOCK * _BLOCKS)
        array.fill(1)  # memory that was never written to is one page of zeros
        sums = np.zeros(_BLOCKS, np.int64)
        geometry = np.array([_BLOCK // 8], np.int64)
        task = compiled_task(probe.read_task)
        with RUN_LOCK:
            POOL.grow(self.threads)
            seconds = _best(lambda: self._run(task, _BLOCKS, array, sums, geometry))
        return array.nbytes / seconds

    def flop_per_s(self) -> float:
        """Return the best of several rounds of multiply-adds, one task for each thread."""
        sums, geometry = np.zeros(self.threads, np.float32), np.array([_STEPS], np.int64)
        task = compiled_task(probe.multiply_task)
        with RUN_LOCK:
            POOL.grow(self.threads)
            seconds = _best(lambda: self._run(task, self.threads, sums, sums, geometry))
        return self.threads * _STEPS * probe.OPERATIONS / seconds

    def _run(
        self, task: int, count: int, source: np.ndarray, target: np.ndarray, geometry: np.ndarray
    ) -> None:
        addresses = (address_of(source), address_of(source), address_of(target))
        run_tasks()(POOL.address, task, count, self.threads, *addresses, address_of(geometry))


def _best(run: Callable[[], None]) -> float:
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
