"""Measurements of imported models: loading, compiling, and one run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_observe.measure.bench import OURS, alternating
from gptrs_observe.measure.machine_limits import MachineLimits
from gptrs_observe.measure.rows import Measure, Row
from gptrs_observe.measure.step_work import first_run, total_work
from gptrs_runtime.imported.loaded_import import LoadedImport


@dataclass(frozen=True)
class _Run:
    """One run of a model on the same arrays."""

    loaded: LoadedImport
    arrays: Mapping[str, np.ndarray]

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self) -> None:
        """All outputs, as arrays of NumPy."""
        self.loaded.run(self.arrays)


def imported_rows(
    loaded: LoadedImport,
    arrays: Mapping[str, np.ndarray],
    rounds: int,
    limits: MachineLimits,
    threads: int | None,
) -> list[Row]:
    """Return the times of loading, of the first run, and of one run: the median of `rounds`.

    Errors are those of `LoadedImport.run`.
    """
    case = _Run(loaded, arrays)
    name = f"run of {', '.join(str(list(array.shape)) for array in arrays.values())}"
    first, works = first_run(case)
    seconds = alternating({OURS: case}, rounds)
    measure = Measure(name, threads, step=total_work(works))
    rate = Measure(f"{name}, rate", threads, "runs/s", 1)
    return [
        *Measure("load", threads).rows({OURS: loaded.load_seconds}),
        *Measure(f"compile and first {name}", threads).rows({OURS: first}),
        *measure.rows(seconds, limits),
        *rate.rows(seconds),
    ]
