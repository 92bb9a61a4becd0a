"""Elementwise units that share large operands are one kernel with several results."""

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.run.executable import NumbaExecutable

ARGUMENT, DONATED = InputRole.ARGUMENT, InputRole.DONATED
N = 70_001


def compiled(text: str, roles: list[InputRole], threads: int = 1) -> NumbaExecutable:
    executable = create(threads).compile(parse_program(text), roles)
    assert isinstance(executable, NumbaExecutable)
    return executable


def momentum(dtype: str = "f32") -> str:
    t = f"{dtype}[{N}]"
    return f"""ptir.v0.5
func @main(%p: {t}, %g: {t}, %m: {t}, %rate: {dtype}[]) -> ({t}, {t}, i1[{N}]) {{
  %r = broadcast_to %rate {{shape = [{N}]}} : {t}
  %0 = mul %m, %r : {t}
  %1 = add %0, %g : {t}
  %2 = mul %1, %r : {t}
  %3 = sub %p, %2 : {t}
  %4 = compare %3, %p {{direction = lt}} : i1[{N}]
  return %3, %1, %4
}}
"""


def arrays(dtype: type) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    found = [random.standard_normal(N).astype(dtype) for _ in range(3)]
    return [*found, np.asarray(0.25, dtype)]


def wanted(p: np.ndarray, g: np.ndarray, m: np.ndarray, rate: np.ndarray) -> list[np.ndarray]:
    m = m * rate + g
    new = p - m * rate
    return [new, m, new < p]


@pytest.mark.paths
@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("roles", [[ARGUMENT] * 4, [DONATED, ARGUMENT, DONATED, ARGUMENT]])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_of_an_optimizer_is_one_call(
    name: str, dtype: type, roles: list[InputRole], threads: int
) -> None:
    executable = compiled(momentum(name), roles, threads)
    assert len(executable.schedule.calls) == 1
    given = arrays(dtype)
    for _ in range(3):
        want = wanted(*given)
        found = [np.asarray(each) for each in executable.run([each.copy() for each in given])]
        assert all(np.array_equal(one, other) for one, other in zip(found, want, strict=True))
        given = [found[0], given[1], found[1], given[3]]


def test_donated_operands_hold_the_results() -> None:
    executable = compiled(momentum(), [DONATED, ARGUMENT, DONATED, ARGUMENT])
    donated = [result.donated for result in executable.schedule.results]
    assert donated == [0, 2, None]


def test_the_arrays_of_a_caller_stay_as_they_are() -> None:
    executable = compiled(momentum(), [ARGUMENT] * 4)
    given = arrays(np.float32)
    before = [each.copy() for each in given]
    executable.run(given)
    assert all(np.array_equal(one, other) for one, other in zip(given, before, strict=True))


@pytest.mark.paths
def test_rows_columns_and_transposes_as_operands() -> None:
    """A donated operand that is also read elsewhere keeps its memory."""
    t = "f32[260, 260]"
    text = f"""ptir.v0.5
func @main(%x: {t}, %row: f32[260], %column: f32[260, 1]) -> ({t}, {t}, {t}) {{
  %r = broadcast_to %row {{shape = [260, 260]}} : {t}
  %c = broadcast_to %column {{shape = [260, 260]}} : {t}
  %t = transpose %x {{permutation = [1, 0]}} : {t}
  %0 = mul %x, %r : {t}
  %1 = add %x, %c : {t}
  %2 = sub %0, %t : {t}
  return %0, %1, %2
}}
"""
    executable = compiled(text, [DONATED, ARGUMENT, ARGUMENT])
    assert len(executable.schedule.calls) == 1
    assert [result.donated for result in executable.schedule.results] == [None] * 3
    random = np.random.default_rng(2)
    x, row, column = (
        random.standard_normal(shape).astype(np.float32) for shape in ((260, 260), 260, (260, 1))
    )
    found = [np.asarray(each) for each in executable.run([x.copy(), row, column])]
    want = x * row, x + column, x * row - x.T
    assert all(np.array_equal(one, other) for one, other in zip(found, want, strict=True))


def test_a_reader_between_keeps_units_apart() -> None:
    """The sum needs the first result, and the second unit the sum."""
    text = f"""ptir.v0.5
func @main(%x: f32[{N}]) -> (f32[{N}], f32[{N}]) {{
  %0 = mul %x, %x : f32[{N}]
  %1 = reduce %0 {{kind = sum, axes = [0]}} : f32[]
  %2 = broadcast_to %1 {{shape = [{N}]}} : f32[{N}]
  %3 = div %x, %2 : f32[{N}]
  return %0, %3
}}
"""
    executable = compiled(text, [ARGUMENT])
    x = np.random.default_rng(3).standard_normal(N).astype(np.float32)
    square, share = (np.asarray(each) for each in executable.run([x]))
    assert np.array_equal(square, x * x)
    np.testing.assert_allclose(share, x / np.sum(x.astype(np.float64) ** 2), 1e-5)
