"""Arrays that are given away come back as results and inputs; their addresses are remembered."""

import numpy as np

from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create

TEXT = """
ptir.v0.5
func @main(%x: f32[64], %y: f32[64]) -> (f32[64], f32[64]) {
  %0 = add %x, %y : f32[64]
  %1 = mul %0, %y : f32[64]
  return %0, %1
}
"""


def full(value: float) -> np.ndarray:
    return np.full(64, value, np.float32)


def test_a_donated_buffer_that_comes_back_is_used_where_it_lies() -> None:
    executable = create(1).compile(parse_program(TEXT), [InputRole.DONATED] * 2)
    x, y = full(1), full(2)
    for _ in range(3):
        wanted = [x + y, (x + y) * y]
        x, y = map(np.asarray, executable.run([x, y]))
        assert [x.tolist(), y.tolist()] == [array.tolist() for array in wanted]


CACHES = """
ptir.v0.5
func @main(%x: f32[4], %y: f32[4], %new: f32[1], %at: si32[1]) -> (f32[4], f32[4]) {
  %0 = dynamic_update_slice %x, %new, %at : f32[4]
  %1 = dynamic_update_slice %y, %new, %at : f32[4]
  return %0, %1
}
"""


def test_an_array_is_found_again_after_it_was_given_for_two_inputs() -> None:
    roles = [InputRole.DONATED] * 2 + [InputRole.ARGUMENT] * 2
    executable = create(1).compile(parse_program(CACHES), roles)
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    executable.run([x, x, np.ones(1, np.float32), np.array([1], np.int32)])
    results = executable.run([x, y, np.ones(1, np.float32), np.array([2], np.int32)])
    assert [np.asarray(result)[2] for result in results] == [1, 1]


def test_another_array_in_the_place_of_a_donated_one_is_used() -> None:
    executable = create(1).compile(parse_program(TEXT), [InputRole.DONATED] * 2)
    for value in (1.0, 2.0, 3.0):
        total, _ = executable.run([full(value), full(1)])
        assert np.asarray(total).tolist() == full(value + 1).tolist()
