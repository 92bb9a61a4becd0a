"""Rules for executables that report the times of their kernels."""

from __future__ import annotations

import numpy as np

from gptrs.api.backends import InputRole, KernelRun
from gptrs.api.programs import parse_program
from gptrs.backend.contract import Backend, overrides
from gptrs_conformance.check import Check
from gptrs_conformance.checks.contract import MIXED
from gptrs_conformance.running import normal, require, require_equal, run_on


def profiled_runs_are_runs(backend: Backend) -> None:
    """A profiled run gives the same bits as any other, and reports plausible times."""
    executable = backend.compile(parse_program(MIXED), [InputRole.ARGUMENT] * 2)
    if not overrides(executable, "run_profiled"):
        return
    x, y = normal(1, 3, 4), normal(2, 3, 4)
    told: list[KernelRun] = []
    buffers = [backend.to_device(x), backend.to_device(y)]
    results = executable.run_profiled(buffers, told.append)
    found = [backend.to_host(result) for result in results]
    require_equal(found, run_on(backend, executable, x, y), "a profiled run")
    for run in told:
        require(
            bool(np.isfinite(run.seconds)) and run.seconds >= 0,
            f"`{run.kernel}` is said to take {run.seconds} seconds",
        )
        require(all(0 <= at < 2 for at in run.inputs), f"`{run.kernel}` reads inputs {run.inputs}")


CHECKS = [Check("profiled runs are runs", "core", profiled_runs_are_runs)]
