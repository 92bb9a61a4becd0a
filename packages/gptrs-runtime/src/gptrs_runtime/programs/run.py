"""Run a PTIR program on a backend by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture import execute
from gptrs.ir.program import Program
from gptrs.plugins.manager import manager


def run_program(
    program: Program, inputs: Mapping[str, np.ndarray], backend: str | Backend | None = None
) -> list[np.ndarray]:
    """Verify, optimize, compile and run `program`; its results as NumPy arrays, in order.

    `inputs` gives an array for each parameter of `@main`, by name. `backend` is a name, a backend,
    or None for the default. UsageError when an input is missing, unknown or of another type,
    ProgramError for a malformed program, UnsupportedError (before anything runs) for an op or
    dtype that the backend lacks, PluginError for an unknown backend.
    """
    engine = manager().get_backend(backend) if isinstance(backend, str) else backend
    return execute.run_program(program, inputs, engine)
