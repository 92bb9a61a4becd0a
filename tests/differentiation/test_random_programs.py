"""Derivatives of random programs: both modes agree, and so do backends and the reference."""

from __future__ import annotations

import numpy as np
import pytest

import fuzz_derivatives
from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.compilation import compile_program
from gptrs.capture.region import capture_body
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import filled, zeros
from gptrs.errors import UsageError
from gptrs.ir.program import Function, Program, verify
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import specialize
from gptrs_conformance import derivatives
from gptrs_conformance.program_generator import random_inputs, random_program
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols

SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_derivatives_of_random_programs(backend: Backend, first: int) -> None:
    seeds = range(first, first + (10 if backend.name == "ref" else 2))
    flaws = [fuzz_derivatives.flaw_of(seed, [backend], 15) for seed in seeds]
    assert set(flaws) <= {None, ""}
    assert "" in flaws


def test_a_derivative_that_differs_is_found(
    reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = derivatives.push

    def twice(*args: object) -> object:
        found = right(*args)  # type: ignore
        return found._replace(
            tangents=[None if each is None else each + each for each in found.tangents]
        )

    monkeypatch.setattr(derivatives, "push", twice)
    flaws = [fuzz_derivatives.flaw_of(seed, [], 15) for seed in range(10)]
    assert any(flaw and "forward mode" in flaw for flaw in flaws)


def _gradient(program: Program, guards: SizeGuards) -> Program:
    """Return the program of the cotangents of all float parameters, those of results being 1."""
    body = program.main.body
    functions = {each.name: each for each in program.functions if each is not program.main}
    wanted = [param.type.dtype.is_float for param in body.params]

    def derived(*inputs: Tensor) -> list[Tensor]:
        ran = Linearized(body, functions, inputs, wanted)
        ones = [filled(1, each) if each.dtype.is_float else None for each in ran.results]
        pairs = zip(inputs, ran.pull(ones), wanted, strict=True)
        return [zeros(x) if found is None else found for x, found, asked in pairs if asked]

    with deciding(guards):
        captured = capture_body("gradient", derived, [param.type for param in body.params])
        made = Function("main", captured.region(captured.outside))
        found = Program((*captured.functions, made))
        verify(found)
    return found


def _results(backend: Backend, program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    executable = compile_program(program, backend, [InputRole.ARGUMENT] * len(inputs))
    found = executable.run([backend.to_device(array) for array in inputs])
    return [np.array(backend.to_host(each)) for each in found]


def test_derivatives_of_programs_with_symbols(reference: Backend) -> None:
    compared = 0
    for seed in range(60):
        program = random_program(seed, size=15, dtypes=fuzz_derivatives.DTYPES)
        sizes = common_sizes(program)
        symbolic, guards = with_symbols(program, sizes)
        if not any(param.type.dtype.is_float for param in symbolic.main.body.params):
            continue
        values = dict(enumerate(sizes))
        numbers = specialize(symbolic, values)
        try:
            found = specialize(_gradient(symbolic, guards), values)
            wanted = _gradient(numbers, SizeGuards({}))
        except UsageError:
            continue
        inputs = list(random_inputs(numbers, seed).values())
        pairs = zip(
            _results(reference, found, inputs), _results(reference, wanted, inputs), strict=True
        )
        assert not any(derivatives.far_apart(own, want) for own, want in pairs)
        compared += 1
    assert compared > 20
