"""Programs made at random give the reference backend's results, bit for bit in integers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.ir import Op, Program, TensorType, dtypes, print_program
from gptrs_backend_numba.backend import create
from gptrs_conformance.program_generator import (
    disagreement,
    programs_covering,
    random_inputs,
    random_program,
)

reference = pytest.importorskip("gptrs_backend_ref.backend", reason="needs the reference backend")


@cache
def numba() -> Backend:
    return create(2)


def claimed(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
    return numba().refusal(op, operands, results) is None


def run(backend: Backend, program: Program, seed: int, donate: bool) -> list[np.ndarray]:
    arrays = list(random_inputs(program, seed).values())
    before = [array.tobytes() for array in arrays]
    roles = [InputRole.DONATED if donate else InputRole.ARGUMENT] * len(arrays)
    executable = backend.compile(program, roles)
    _, results = (
        executable.run([array.copy() if donate else array for array in arrays]) for _ in range(2)
    )
    assert [array.tobytes() for array in arrays] == before
    return [backend.to_host(result) for result in results]


def assert_like_the_reference(program: Program, seed: int, donate: bool) -> None:
    expected = run(reference.create(None), program, seed, donate=False)
    found = run(numba(), program, seed, donate)
    types = [value.type for value in program.main.body.results]
    for position, (have, want, type_) in enumerate(zip(found, expected, types, strict=True)):
        problem = disagreement(have, want, type_)
        assert not problem, f"result {position} {problem}:\n{print_program(program)}"
    for index, have in enumerate(found):
        assert not any(np.shares_memory(have, other) for other in found[:index])


TYPES = (dtypes.si32, dtypes.si64, dtypes.i1, dtypes.f32)


@pytest.mark.long
@pytest.mark.sample(8)
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_results_are_those_of_the_reference(seed: int, donate: bool) -> None:
    program = random_program(seed, size=40, dtypes=TYPES, accepts=claimed)
    assert_like_the_reference(program, seed, donate)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_every_op_and_type_gives_the_results_of_the_reference(part: int) -> None:
    programs = programs_covering(0, accepts=claimed)  # those of the kit, whose kernels are there
    for seed, program in list(enumerate(programs))[part::4]:
        assert_like_the_reference(program, seed, donate=seed % 2 == 0)
