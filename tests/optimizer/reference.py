"""The reference backend, which runs what passes are tested on."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.backend.protocol import InputRole
from gptrs.ir import Program

reference = pytest.importorskip("gptrs_backend_ref.backend", reason="runs programs on it")
REF = reference.create(None)


def run(program: Program, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of `program` as it is, in the order of return."""
    executable = REF.compile(program, [InputRole.ARGUMENT] * len(inputs))
    results = executable.run([REF.to_device(array) for array in inputs.values()])
    return [REF.to_host(result) for result in results]


def evaluate(program: Program) -> list[np.ndarray]:
    """The results of a program without parameters."""
    return run(program, {})
