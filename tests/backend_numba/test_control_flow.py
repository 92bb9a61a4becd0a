"""Regions inside one schedule: what is copied and what is not, and that loops can be stopped."""

import signal

import numpy as np
import pytest

import gptrs_backend_ref.backend as ref
from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.run.executable import NumbaExecutable

ARGUMENT, DONATED = InputRole.ARGUMENT, InputRole.DONATED

FILL = """ptir.v0.5
func @main(%i: si32[], %cache: f32[4, 3], %row: f32[1, 3]) -> f32[4, 3] {
  %0, %1, %2 = while %i, %cache, %row
    condition(%j: si32[], %c: f32[4, 3], %r: f32[1, 3]) {
      %0 = compare %j, si32[] 4 {direction = lt} : i1[]
      return %0
    }
    body(%j: si32[], %c: f32[4, 3], %r: f32[1, 3]) {
      %0 = reshape %j {shape = [1]} : si32[1]
      %1 = concat %0, si32[1] [0] {axis = 0} : si32[2]
      %2 = dynamic_update_slice %c, %r, %1 : f32[4, 3]
      %3 = add %j, si32[] 1 : si32[]
      return %3, %2, %r
    } : (si32[], f32[4, 3], f32[1, 3])
  return %1
}
"""
RUNNING_SUM = """ptir.v0.5
func @main(%start: f32[300], %xs: f32[5, 300], %w: f32[300]) -> (f32[300], f32[5, 300]) {
  %0, %1, %2 = scan %start, %w, %xs {carry_count = 2, reverse = true}
    body(%total: f32[300], %v: f32[300], %x: f32[300]) {
      %0 = mul %x, %v : f32[300]
      %1 = add %total, %0 : f32[300]
      %2 = neg %x : f32[300]
      return %1, %v, %2
    } : (f32[300], f32[300], f32[5, 300])
  return %0, %2
}
"""
TABLE_OF_SUMS = """ptir.v0.5
func @main(%a: f32[3, 2], %b: f32[2, 4]) -> (f32[], f32[3, 4, 2]) {
  %t = transpose %b {permutation = [1, 0]} : f32[4, 2]
  %0, %1, %2 = scan f32[] 0.0, %t, %a {carry_count = 2}
    body(%sum: f32[], %rows: f32[4, 2], %x: f32[2]) {
      %0, %1, %2 = scan %sum, %x, %rows {carry_count = 2, reverse = true}
        body(%s: f32[], %u: f32[2], %y: f32[2]) {
          %0 = add %u, %y : f32[2]
          %1 = reduce %0 {kind = sum, axes = [0]} : f32[]
          %2 = add %s, %1 : f32[]
          return %2, %u, %0
        } : (f32[], f32[2], f32[4, 2])
      return %0, %rows, %2
    } : (f32[], f32[4, 2], f32[3, 4, 2])
  return %0, %2
}
"""
SWAPS = """ptir.v0.5
func @main(%n: si32[], %a: f32[2, 3], %b: f32[3, 2]) -> (f32[2, 3], f32[3, 2], f32[2, 3]) {
  %before = neg %a : f32[2, 3]
  %0, %1, %2 = while %n, %a, %b
    condition(%i: si32[], %x: f32[2, 3], %y: f32[3, 2]) {
      %0 = compare %i, si32[] 0 {direction = gt} : i1[]
      return %0
    }
    body(%i: si32[], %x: f32[2, 3], %y: f32[3, 2]) {
      %0 = sub %i, si32[] 1 : si32[]
      %1 = transpose %y {permutation = [1, 0]} : f32[2, 3]
      %2 = transpose %x {permutation = [1, 0]} : f32[3, 2]
      return %0, %1, %2
    } : (si32[], f32[2, 3], f32[3, 2])
  %after = add %before, %1 : f32[2, 3]
  return %1, %2, %after
}
"""
MAYBE_UPDATE = """ptir.v0.5
func @main(%p: i1[], %cache: f32[4], %x: f32[1], %at: si32[1]) -> f32[4] {
  %0 = cond %p, %cache, %x, %at
    then(%c: f32[4], %y: f32[1], %i: si32[1]) {
      %0 = dynamic_update_slice %c, %y, %i : f32[4]
      return %0
    }
    else(%c: f32[4], %y: f32[1], %i: si32[1]) {
      return %c
    } : f32[4]
  return %0
}
"""
PICK = """ptir.v0.5
func @main(%table: f32[3], %picks: si64[4]) -> f32[4] {
  %0, %1 = scan %table, %picks {carry_count = 1}
    body(%t: f32[3], %i: si64[]) {
      %0 = reshape %i {shape = [1]} : si64[1]
      %1 = take %t, %0 : f32[1]
      %2 = reshape %1 {shape = []} : f32[]
      return %t, %2
    } : (f32[3], f32[4])
  return %1
}
"""
PROJECTIONS = """ptir.v0.5
func @main(%x: f32[64], %ws: f32[6, 64, 64]) -> (f32[64], f32[6, 64]) {
  %0, %1 = scan %x, %ws {carry_count = 1}
    body(%h: f32[64], %w: f32[64, 64]) {
      %0 = dot_general %h, %w {contract_lhs = [0], contract_rhs = [0]} : f32[64]
      %1 = tanh %0 : f32[64]
      return %1, %1
    } : (f32[64], f32[6, 64])
  return %0, %1
}
"""
FOREVER = """ptir.v0.5
func @main(%go: i1[], %x: f32[]) -> f32[] {
  %0, %1 = while %go, %x
    condition(%g: i1[], %y: f32[]) {
      return %g
    }
    body(%g: i1[], %y: f32[]) {
      BODY
    } : (i1[], f32[])
  return %1
}
"""


def compiled(text: str, *roles: InputRole, threads: int = 1) -> NumbaExecutable:
    program = parse_program(text)
    given = roles or [ARGUMENT] * len(program.main.body.params)
    return create(threads).compile(program, given)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def address(array: object) -> int:
    return np.asarray(array).__array_interface__["data"][0]


INPUTS = {
    FILL: (np.array(1, np.int32), normal(4, 3), normal(1, 3)),
    RUNNING_SUM: (normal(300), normal(5, 300), normal(300)),
    TABLE_OF_SUMS: (normal(3, 2), normal(2, 4)),
    SWAPS: (np.array(3, np.int32), normal(2, 3), normal(3, 2)),
    PROJECTIONS: (normal(64), normal(6, 64, 64) / 8),
    PICK: (normal(3), np.array([2, 0, 0, 1])),
    MAYBE_UPDATE: (np.array(True), normal(4), normal(1), np.array([2], np.int32)),
}


@pytest.mark.parametrize("text", INPUTS)
def test_the_reference_agrees_and_results_outlast_runs(text: str) -> None:
    inputs, kept = INPUTS[text], [array.copy() for array in INPUTS[text]]
    executable = compiled(text)
    found = executable.run(inputs)
    again = executable.run([np.zeros_like(array) for array in inputs])
    expected = ref.create().compile(parse_program(text), [ARGUMENT] * len(inputs)).run(inputs)
    for result, other, wanted in zip(found, again, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(wanted), rtol=1e-5, atol=1e-6)
        assert not np.shares_memory(np.asarray(result), np.asarray(other))
    for array, before in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_a_donated_tensor_is_updated_in_place_by_a_loop() -> None:
    inputs = [array.copy() for array in INPUTS[FILL]]
    (result,) = compiled(FILL, ARGUMENT, DONATED, ARGUMENT).run(inputs)
    assert address(result) == address(inputs[1])
    np.testing.assert_array_equal(inputs[1][1:], np.repeat(inputs[2], 3, axis=0))


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_updates_a_donated_tensor_in_place(flag: bool) -> None:
    inputs = [array.copy() for array in INPUTS[MAYBE_UPDATE]]
    inputs[0] = np.array(flag)
    before = inputs[1].copy()
    (result,) = compiled(MAYBE_UPDATE, ARGUMENT, DONATED, ARGUMENT, ARGUMENT).run(inputs)
    assert address(result) == address(inputs[1])
    assert (np.asarray(result) != before).tolist() == [False, False, flag, False]


def test_rows_and_what_a_body_passes_on_are_not_copied() -> None:
    schedule = compiled(RUNNING_SUM).schedule
    # the start, then in each step: the total, the row of the result, the total to its place
    assert len(schedule.calls) == 4
    assert schedule.scratch <= 2 * 4 * 304


def test_an_error_in_a_step_names_the_index_and_leaves_the_executable_usable() -> None:
    executable = compiled(PICK)
    with pytest.raises(ExecutionError, match=r"`take` of f32\[3\], si64\[1\]: index 7 is out of"):
        executable.run([normal(3), np.array([0, 1, 7, 9])])
    (result,) = executable.run([normal(3), np.array([0, 1, 2, 2])])
    np.testing.assert_array_equal(np.asarray(result), normal(3)[[0, 1, 2, 2]])


def test_threads_do_not_change_a_bit() -> None:
    one, two = (compiled(PROJECTIONS, threads=n).run(INPUTS[PROJECTIONS]) for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("body", ["return %g, %y", "%0 = add %y, %y : f32[]\n return %g, %0"])
def test_an_endless_loop_can_be_interrupted(body: str) -> None:
    executable = compiled(FOREVER.replace("BODY", body))
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            executable.run([np.array(True), np.array(1.0, np.float32)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    (result,) = executable.run([np.array(False), np.array(2.0, np.float32)])
    assert float(np.asarray(result)) == 2.0


ROWS_OF_LOOPS = """ptir.v0.5
func @main(%s: f32[1, 96], %xs: f32[5, 1, N], %w: f32[N, 96], %v: f32[96, N])
    -> (f32[1, 96], f32[5, 1, N]) {
  %0, %1, %2, %3 = scan %s, %w, %v, %xs {carry_count = 3}
    body(%h: f32[1, 96], %a: f32[N, 96], %b: f32[96, N], %x: f32[1, N]) {
      %0 = dot_general %h, %a {contract_lhs = [1], contract_rhs = [1]} : f32[1, N]
      %1 = add %0, %x : f32[1, N]
      %2 = dot_general %1, %b {contract_lhs = [1], contract_rhs = [1]} : f32[1, 96]
      return %2, %a, %b, %1
    } : (f32[1, 96], f32[N, 96], f32[96, N], f32[5, 1, N])
  return %0, %3
}
"""


@pytest.mark.paths
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_that_read_weights_from_their_end_give_the_same_bits(threads: int) -> None:
    # The first weight is several tasks of one row, with a rest of panels; the second is less.
    n = 2500
    random = np.random.default_rng(2)
    shapes = (1, 96), (5, 1, n), (n, 96), (96, n)
    s, xs, w, v = (random.standard_normal(shape).astype(np.float32) / 9 for shape in shapes)
    roles = [ARGUMENT, ARGUMENT, InputRole.PARAMETER, InputRole.PARAMETER]
    text = ROWS_OF_LOOPS.replace("N", str(n))
    loop = create(threads).compile(parse_program(text), roles)
    step = create(1).compile(parse_program(text.replace("[5", "[1")), roles)
    for _ in range(2):  # steps are odd in number: the second run begins at the other end
        last, found = loop.run([s, xs, w, v])
        state = s
        for x, y in zip(xs, np.asarray(found), strict=True):
            state, want = (np.asarray(each) for each in step.run([state, x[None], w, v]))
            np.testing.assert_array_equal(y, want[0])
        np.testing.assert_array_equal(last, state)
