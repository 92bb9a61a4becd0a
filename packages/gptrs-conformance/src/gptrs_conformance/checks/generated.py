"""Generated programs: a backend gives the same results for them optimized and as written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.capture.compilation import compile_program
from gptrs.ir import print_program
from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.program_generator import (
    disagreement,
    programs_covering,
    random_inputs,
    random_program,
)

PROGRAMS = 80
"""Number of random programs, in addition to those that cover all claims of a backend."""
_GROUP = 10


def require_agreement(backend: Backend, program: Program, seed: int) -> None:
    """Raise CheckFailure unless `program` gives the same results optimized and as written.

    Its inputs are random, from `seed`, and are not modified.
    """
    roles = [InputRole.ARGUMENT] * len(program.main.body.params)
    inputs = list(random_inputs(program, seed).values())
    before = [array.tobytes() for array in inputs]
    plain = _results(backend, backend.compile(program, roles), inputs)
    optimized = _results(backend, compile_program(program, backend, roles), inputs)
    if [array.tobytes() for array in inputs] != before:
        raise CheckFailure(f"the program overwrote an input\n{print_program(program)}")
    for position, value in enumerate(program.main.body.results):
        problem = disagreement(optimized[position], plain[position], value.type)
        if problem is not None:
            text = f"optimized, result {position} {problem}, which is the result as written"
            raise CheckFailure(f"{text} (inputs of seed {seed}):\n{print_program(program)}")


def _results(
    backend: Backend, executable: Executable, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    results = executable.run([backend.to_device(array) for array in inputs])
    return [np.array(backend.to_host(result)) for result in results]


def _claims(
    backend: Backend, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> bool:
    return backend.refusal(op, operands, results) is None


def _check_random(first: int, backend: Backend) -> None:
    for seed in range(first, first + _GROUP):
        program = random_program(seed, accepts=partial(_claims, backend))
        require_agreement(backend, program, seed)


def _check_covering(backend: Backend) -> None:
    for seed, program in enumerate(programs_covering(0, accepts=partial(_claims, backend))):
        require_agreement(backend, program, seed)


CHECKS: list[Check] = [
    Check("generated programs of every op and element type", "full", _check_covering),
    *(
        Check(f"generated programs {first} to {first + _GROUP - 1}", "full",
              partial(_check_random, first))
        for first in range(0, PROGRAMS, _GROUP)
    ),
]  # fmt: skip
