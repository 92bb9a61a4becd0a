"""A program that runs in parts gives the same bits as the whole, whatever the parts are."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.parameter import Streaming
from gptrs.capture.streaming.segments import Segment, borders, cut
from gptrs.capture.streaming.streamed_executable import StreamedExecutable, streamed_executable
from gptrs.errors import GptrsError
from gptrs.ir import parse_program, verify
from gptrs.ir.program import Program
from gptrs.ir.specialize import specialize, symbol_sources, symbols
from gptrs.optimizer.pipeline import Pipeline
from gptrs_conformance.program_generator import random_inputs, random_program
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
DONATED, STREAMED = InputRole.DONATED, InputRole.STREAMED

LAYERS = parse_program("""
ptir.v0.5
func @main(%x: f32[2, 4], %cache: f32[2, 4], %a: f32[4, 4], %b: f32[4, 4], %c: f32[4, 4])
    -> (f32[2, 4], f32[2, 4]) {
  %one = constant {value = 1.0} : f32[]
  %ones = broadcast_to %one {shape = [2, 4]} : f32[2, 4]
  %0 = dot_general %x, %a {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = add %0, %ones : f32[2, 4]
  %2 = dot_general %1, %b {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %3 = add %2, %cache : f32[2, 4]
  %4 = add %3, %1 : f32[2, 4]
  %5 = dot_general %4, %c {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %6 = mul %5, %ones : f32[2, 4]
  return %6, %3
}
""")
"""Three layers of which the first and the last need the same constant."""
ROLES = [ARGUMENT, DONATED, PARAMETER, PARAMETER, PARAMETER]


def weights_of(program: Program, roles: list[InputRole]) -> list:
    params = program.main.body.params
    return [param for param, role in zip(params, roles, strict=True) if role is PARAMETER]


def parts_of(program: Program, roles: list[InputRole], share: int) -> tuple[Segment, ...]:
    weights = weights_of(program, roles)
    return cut(program, roles, weights, borders(program.main.body, weights, share)).parts


def test_a_part_reads_no_more_than_its_share():
    parts = parts_of(LAYERS, ROLES, 64)
    assert [part.inputs for part in parts] == [(0, 2), (5, 3, 1), (7, 4)]
    for part in parts:
        assert part.roles.count(STREAMED) == 1
        verify(part.program)


@pytest.mark.parametrize(("share", "count"), [(1, 3), (127, 3), (128, 2), (192, 1), (10_000, 1)])
def test_neighbours_share_a_part_as_long_as_there_is_room(share, count):
    assert len(parts_of(LAYERS, ROLES, share)) == count


def test_constants_are_made_anew_and_do_not_cross():
    first, _, last = parts_of(LAYERS, ROLES, 64)
    for part in (first, last):
        names = [made.op.name for made in part.program.main.body.instructions]
        assert names[:2] == ["constant", "broadcast_to"]


def test_what_is_read_for_the_last_time_is_donated():
    _, middle, last = parts_of(LAYERS, ROLES, 64)
    assert middle.roles.count(DONATED) == 2, "the cache, and what nothing reads later"
    assert last.roles.count(DONATED) == 1
    assert middle.dying == middle.inputs


def test_a_donated_input_that_is_read_again_is_not_given_away_yet():
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[2, 2], %a: f32[2, 2], %b: f32[2, 2]) -> f32[2, 2] {
  %0 = dot_general %x, %a {contract_lhs = [1], contract_rhs = [0]} : f32[2, 2]
  %1 = dot_general %0, %b {contract_lhs = [1], contract_rhs = [0]} : f32[2, 2]
  %2 = add %1, %x : f32[2, 2]
  return %2
}
""")
    roles = [DONATED, PARAMETER, PARAMETER]
    first, last = parts_of(program, roles, 1)
    assert first.roles == (ARGUMENT, STREAMED)
    assert dict(zip(last.inputs, last.roles, strict=True))[0] is DONATED


def test_a_table_is_no_load():
    program = parse_program("""
ptir.v0.5
func @main(%i: si64[3], %t: f32[9, 2], %a: f32[2, 2]) -> (f32[3, 2], f32[3, 9]) {
  %0 = take %t, %i : f32[3, 2]
  %1 = dot_general %0, %a {contract_lhs = [1], contract_rhs = [0]} : f32[3, 2]
  %2 = dot_general %1, %t {contract_lhs = [1], contract_rhs = [1]} : f32[3, 9]
  return %1, %2
}
""")
    roles = [ARGUMENT, PARAMETER, PARAMETER]
    first, last = parts_of(program, roles, 16)
    assert first.tables == {1}
    assert last.tables == frozenset(), "all of it is read there"


def streamed(program: Program, roles: list[InputRole], backend: Backend, share: int):
    return streamed_executable(program, roles, backend.compile, Streaming(8 * share, pin_below=0))


@pytest.mark.parametrize("share", [1, 128])
def test_layers_give_the_same_bits(backend, share):
    random_ = np.random.default_rng(share)
    arrays = [random_.normal(size=p.type.shape).astype(np.float32) for p in LAYERS.inputs.values()]
    run = streamed(LAYERS, ROLES, backend, share).run
    for _ in range(2):
        found = run([backend.to_device(array.copy()) for array in arrays])
        whole = backend.compile(LAYERS, ROLES)
        expected = whole.run([backend.to_device(array.copy()) for array in arrays])
        for a, b in zip(found, expected, strict=True):
            assert backend.to_host(a).tobytes() == backend.to_host(b).tobytes()


def test_results_have_memory_of_their_own(backend):
    """One that is an input, and one that is returned twice."""
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[2], %a: f32[2], %b: f32[2]) -> (f32[2], f32[2], f32[2], f32[2], f32[2]) {
  %0 = add %x, %a : f32[2]
  %1 = add %0, %b : f32[2]
  %c = constant {value = 3.0} : f32[]
  %d = broadcast_to %c {shape = [2]} : f32[2]
  return %0, %x, %0, %1, %d
}
""")
    roles = [ARGUMENT, PARAMETER, PARAMETER]
    x, a, b = (np.array(v, np.float32) for v in ([1, 2], [10, 20], [100, 200]))
    given = [backend.to_device(array) for array in (x, a, b)]
    found = [backend.to_host(r) for r in streamed(program, roles, backend, 1).run(given)]
    assert [r.tolist() for r in found] == [[11, 22], [1, 2], [11, 22], [111, 222], [3, 3]]
    for one in range(5):
        assert not np.shares_memory(found[one], x)
        for other in range(one):
            assert not np.shares_memory(found[one], found[other])


def outcome(backend: Backend, run, arrays) -> list[bytes] | str:
    """Return the bits of the results, or the error."""
    try:
        results = run([backend.to_device(array.copy()) for array in arrays])
    except GptrsError as error:
        return str(error)
    return [backend.to_host(result).tobytes() for result in results]


@pytest.mark.parametrize("seed", range(12))
def test_generated_programs_give_the_same_bits(backend, seed):
    """Whatever is a parameter, and wherever the borders of the parts lie."""
    dice = random.Random(seed)
    program = Pipeline().run(random_program(seed, size=dice.choice([6, 12, 20])))
    inputs = random_inputs(program, seed)
    roles = [dice.choice([ARGUMENT, DONATED, PARAMETER]) for _ in inputs]
    arrays = list(inputs.values())
    expected = outcome(backend, backend.compile(program, roles).run, arrays)
    starts = range(1, len(program.main.body.instructions), dice.choice([1, 2, 3]))
    pieces = cut(program, roles, weights_of(program, roles), starts)
    for part in pieces.parts:
        verify(part.program)
    run = StreamedExecutable(pieces, backend.compile, 0, {}).run
    assert outcome(backend, run, arrays) == expected


@pytest.mark.parametrize("seed", range(12))
def test_parts_of_generated_programs_with_symbols_serve_all_sizes(backend: Backend, seed: int):
    """Each part knows the sizes of all symbols, whatever it reads."""
    if not backend.symbolic:
        pytest.skip("the backend compiles no symbols")
    dice = random.Random(seed)
    made = random_program(seed, size=dice.choice([6, 12, 20]))
    symbolic, guards = with_symbols(made, common_sizes(made))
    roles = [dice.choice([ARGUMENT, DONATED]) for _ in symbolic.main.body.params]
    starts = range(1, len(symbolic.main.body.instructions), dice.choice([1, 2, 3]))
    pieces = cut(symbolic, roles, [], starts)
    for part in pieces.parts:
        assert symbols(part.program) == symbols(symbolic)
    places = symbol_sources(symbolic.main.body.params)
    run = StreamedExecutable(pieces, partial(backend.compile_symbolic, guards=guards), 0, places)
    for sizes in (guards.example, {number: 1 for number in guards.example}):
        if guards.accept(sizes):
            special = specialize(symbolic, sizes)
            arrays = list(random_inputs(special, seed).values())
            expected = outcome(backend, backend.compile(special, roles).run, arrays)
            assert outcome(backend, run.run, arrays) == expected
