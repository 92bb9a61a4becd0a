"""How fast the machine is at the most: measured by the backend where it can, else with NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.quick_dataclass import dataclass

_READ_ELEMENTS = 32 << 20
_MATRIX = 768
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits of this machine, with the threads that were asked for."""

    read_gb_per_s: float
    """Gigabytes (10^9) a second from memory."""
    gflop_per_s: float
    """Operations on f32, 10^9 a second."""
    measured_by: str
    """The backend, or "numpy", whose threads are its own choice."""
    threads: int | None
    """How many threads took part, None if that is not known."""


def measure_limits(backend: Backend) -> MachineLimits:
    """Measure for some tenths of a second, with the threads of `backend` if it takes part."""
    read, flop = backend.read_bytes_per_s(), backend.flop_per_s()
    if read is not None and flop is not None:
        return MachineLimits(read / 1e9, flop / 1e9, backend.name, backend.threads)
    array = np.ones(_READ_ELEMENTS, np.int64)
    read = array.nbytes / _best(lambda: array.sum())
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    flop = 2 * _MATRIX**3 / _best(lambda: matrix @ matrix)
    return MachineLimits(read / 1e9, flop / 1e9, "numpy", None)


def _best(run: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
