"""Runs programs without inputs on this backend: what its patterns fold constants with."""

from __future__ import annotations

import numpy as np

from gptrs.ir.program import Program
from gptrs_backend_numba.compiler import lower
from gptrs_backend_numba.run.executable import RUN_LOCK, NumbaExecutable


def evaluate(program: Program) -> list[np.ndarray]:
    """The results of a program without parameters, bit for bit those of any number of threads."""
    RUN_LOCK.claim()
    return [np.asarray(each) for each in NumbaExecutable(lower(program, (), 1), (), (), 1).run(())]
