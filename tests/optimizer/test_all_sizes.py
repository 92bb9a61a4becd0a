"""Random programs with symbols, optimized once, give the bits of their specialized forms."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.compilation import prepare
from gptrs.ir import parse_program, verify
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_ref.backend import create
from gptrs_conformance.checks.symbolic import require_all_sizes
from gptrs_conformance.program_generator import random_program
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols

_CHUNK = 50
_OF_COMPILED = 5
"""Programs of a chunk for backends that compile them, which takes long; `make fuzz` has more."""


def _examine(backend: Backend, first: int, count: int) -> int:
    """Return how many sizes were compared."""
    return sum(
        require_all_sizes(backend, random_program(seed, accepts=_claims(backend)), seed)
        for seed in range(first, first + count)
    )


def _claims(backend: Backend):
    return lambda op, operands, results: backend.refusal(op, operands, results) is None


@pytest.mark.long
def test_some_programs_of_symbols_give_the_bits_of_their_specialized_forms():
    assert _examine(create(), 0, 40) >= 80


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1_000, 1_200, _CHUNK))
def test_programs_of_symbols_give_the_bits_of_their_specialized_forms(backend: Backend, first: int):
    count = _CHUNK if backend.name == "ref" else _OF_COMPILED
    assert _examine(backend, first, count) >= 2 * count


def test_an_extreme_of_a_symbolic_axis_guards_that_there_is_one():
    guards = SizeGuards({0: 3})
    with deciding(guards):
        parse_program("""ptir.v0.5
        func @main(%x: f32[?0-1]) -> si64[] {
          %0 = argmax %x {axis = 0, keepdims = false, dtype = si64} : si64[]
          return %0
        }
        """)
    assert guards.words() == ["?0 >= 2"]


def test_a_slice_that_may_be_empty_guards_where_it_starts():
    guards = SizeGuards({0: 2, 1: 5})
    with deciding(guards):
        parse_program("""ptir.v0.5
        func @main(%x: f32[?1], %y: f32[?0]) -> f32[?0-1] {
          %0 = slice %x {starts = [3], sizes = [?0-1], strides = [3]} : f32[?0-1]
          return %0
        }
        """)
    assert not guards.accept({0: 1, 1: 2}), "an empty slice starts within the axis or at its end"
    assert guards.accept({0: 1, 1: 3})


@pytest.mark.parametrize("seed", range(30))
def test_every_pass_keeps_symbolic_programs_well_formed_and_adds_no_guard(seed: int):
    program = random_program(seed)
    symbolic, guards = with_symbols(program, common_sizes(program))
    before = guards.guards
    with deciding(guards):
        verify(symbolic)
        optimized = Pipeline(verify=True).run(symbolic)
        assert Pipeline(verify=True).run(optimized) is optimized
    assert guards.guards == before


def test_constants_of_symbolic_size_and_what_is_cut_by_symbols_are_not_evaluated():
    text = """ptir.v0.5
    func @main(%x: f32[?0]) -> (f32[?0], f32[1], f32[2]) {
      %0 = constant {value = [1.0, 2.0, 3.0, 4.0]} : f32[4]
      %1 = slice %0 {starts = [?0-1], sizes = [1]} : f32[1]
      %2 = slice %0 {starts = [1], sizes = [2]} : f32[2]
      %3 = constant {value = 2.0} : f32[]
      %4 = broadcast_to %3 {shape = [?0]} : f32[?0]
      %5 = sqrt %4 : f32[?0]
      return %5, %1, %2
    }
    """
    guards = SizeGuards({0: 3})
    with deciding(guards):
        program = parse_program(text)
    executable = prepare(program, create(), [InputRole.ARGUMENT], guards=guards).executable
    for size in (1, 3, 4):
        roots, one, two = executable.run([np.ones(size, np.float32)])
        assert np.asarray(roots).tolist() == [np.float32(2) ** np.float32(0.5)] * size
        assert np.asarray(one).tolist() == [size]
        assert np.asarray(two).tolist() == [2, 3]
    assert guards.words() == ["?0 <= 4"]
