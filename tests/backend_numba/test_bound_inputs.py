"""Weights that are bound once give what they give in every run, whoever runs in between."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from gptrs.backend.contract import BoundInputs, InputRole
from gptrs.errors import UsageError
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.packing import PACKED_WEIGHTS
from gptrs_backend_numba.run.executable import NumbaExecutable

ARGUMENT, PARAMETER, DONATED = InputRole.ARGUMENT, InputRole.PARAMETER, InputRole.DONATED
TEXT = """
ptir.v0.5
func @main(%x: f32[4], %w: f32[4], %v: f32[4]) -> f32[4] {
  %0 = mul %x, %w : f32[4]
  %1 = add %0, %v : f32[4]
  return %1
}
"""
PRODUCT = """
ptir.v0.5
func @main(%x: f32[2, 64], %w: f32[64, 96]) -> f32[2, 96] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 96]
  return %0
}
"""


def full(value: float) -> np.ndarray:
    return np.full(4, value, np.float32)


def compiled(
    roles: tuple[InputRole, ...] = (ARGUMENT, PARAMETER, PARAMETER), text: str = TEXT
) -> NumbaExecutable:
    return create(1).compile(parse_program(text), roles)


def result(executable: NumbaExecutable, x: np.ndarray, bound: BoundInputs) -> list[float]:
    return np.asarray(executable.run_bound([x], bound)[0]).tolist()


def test_bound_weights_count_until_others_are_given() -> None:
    executable = compiled()
    first, second = BoundInputs([full(2), full(1)]), BoundInputs([full(3), full(5)])
    for bound, wanted in ((first, 21), (first, 21), (second, 35), (first, 21), (second, 35)):
        assert result(executable, full(10), bound) == [wanted] * 4


def test_a_run_that_is_given_all_inputs_changes_nothing_for_the_next() -> None:
    executable, bound = compiled(), BoundInputs([full(2), full(1)])
    assert result(executable, full(10), bound) == [21] * 4
    (other,) = executable.run([full(10), full(7), full(0)])
    assert np.asarray(other).tolist() == [70] * 4
    assert result(executable, full(20), bound) == [41] * 4


def test_weights_may_be_bound_in_part() -> None:
    executable, bound = compiled(), BoundInputs([full(1)])
    for weight in (2, 3, 2):
        (found,) = executable.run_bound([full(10), full(weight)], bound)
        assert np.asarray(found).tolist() == [10 * weight + 1] * 4


def test_what_is_no_parameter_is_looked_at_in_every_run() -> None:
    """An argument at the end, and a weight whose memory kernels cannot work on."""
    changing, strided = full(1), np.full(8, 2, np.float32)[::2]
    executable = compiled((ARGUMENT, PARAMETER, ARGUMENT))
    bound = BoundInputs([strided, changing])
    for value in (1, 2):
        changing[:] = value
        assert result(executable, full(10), bound) == [20 + value] * 4


def test_a_bound_weight_is_not_overwritten() -> None:
    weight = full(2)
    executable = compiled((DONATED, PARAMETER, PARAMETER))
    bound = BoundInputs([weight, full(1)])
    for x in (full(3), weight, full(3), weight):
        assert result(executable, x, bound) == [2 * x[0] + 1] * 4
        assert weight.tolist() == [2] * 4


def test_inputs_are_counted_with_those_that_are_bound() -> None:
    executable, bound = compiled(), BoundInputs([full(2), full(1)])
    for inputs in ([], [full(1), full(1)], [full(1)] * 3):
        with pytest.raises(UsageError, match=f"takes 3 inputs, got {len(inputs) + 2}"):
            executable.run_bound(inputs, bound)
    assert result(executable, full(10), bound) == [21] * 4
    with pytest.raises(UsageError, match=r"input 0 must be `f32\[4\]`, got `f32\[1\]`"):
        executable.run_bound([np.ones(1, np.float32)], bound)
    assert result(executable, full(20), bound) == [41] * 4


def test_bound_weights_and_their_packed_copies_go_with_who_holds_them() -> None:
    executable = compiled((ARGUMENT, PARAMETER), PRODUCT)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    for value in (1.0, 2.0):
        weight = np.full((64, 96), value, np.float32)
        alive, bound = weakref.ref(weight), BoundInputs([weight])
        del weight
        for _ in range(2):
            (found,) = executable.run_bound([np.ones((2, 64), np.float32)], bound)
            assert np.asarray(found).tolist() == [[64 * value] * 96] * 2
        assert before < PACKED_WEIGHTS.nbytes
        del bound
        gc.collect()
        assert alive() is None
        assert before == PACKED_WEIGHTS.nbytes


def test_threads_with_weights_of_their_own_share_an_executable() -> None:
    executable = compiled()
    wrong: list[list[float]] = []

    def work(weight: int) -> None:
        bound = BoundInputs([full(weight), full(weight)])
        for x in range(300):
            found = result(executable, full(x), bound)
            if found != [weight * x + weight] * 4:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(weight,)) for weight in (2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("size", [0, 1, 64, 5000])
def test_results_belong_to_the_caller_and_arguments_stay_theirs(size: int) -> None:
    text = TEXT.replace("f32[4]", f"f32[{size}]")
    executable = compiled((ARGUMENT, PARAMETER, PARAMETER), text)
    ones = np.ones(size, np.float32)
    bound = BoundInputs([ones, ones])
    given = [np.full(2 * size, value, np.float32)[::2] for value in (1, 2, 3)]
    found = [np.asarray(executable.run_bound([x], bound)[0]) for x in given]
    assert [x.tolist() for x in given] == [[value] * size for value in (1, 2, 3)]
    assert [x.tolist() for x in found] == [[value] * size for value in (2, 3, 4)]
    assert all(x.flags.writeable and x.flags.owndata for x in found)
