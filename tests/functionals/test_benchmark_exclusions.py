"""The policy `benchmark` leaves out what fails, declines, or gives something else."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from functionals.races import X, slowly
from gptrs import functionals as F
from gptrs.errors import ExecutionError, UsageError
from gptrs.functionals.dispatch.benchmark_policy import disagreement

pytestmark = pytest.mark.usefixtures("on_reference")


def test_one_that_fails_is_left_out_with_a_warning(race, caplog):

    def fail(x):
        raise RuntimeError("no such kernel")

    race.add("failing", fail)
    race.add("fast", lambda x: x + x)
    with race.overrides():
        race.runs("fast", X)
        assert race.runs("fast", X) == 1
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("gptrs", "WARNING")
    assert record.getMessage() == (
        f"`benchmark` of `{race.name}` leaves out `failing`: RuntimeError: no such kernel"
    )


def test_if_all_others_fail_the_portable_one_is_used(race, caplog):
    race.add("failing", lambda x: 1 / 0)
    with race.overrides():
        race.runs("portable", X)
        assert race.runs("failing", X) == 0
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x + x + 1, "its `f32[2]` is not that of the portable implementation"),
        (lambda x: F.concat([x, x], 0), "it gives `f32[4]` instead of `f32[2]`"),
        (lambda x: (x, x), "it gives 2 results instead of 1"),
        (lambda x: 3, "it gives 0 results instead of 1"),
    ],
)
def test_one_that_gives_something_else_is_left_out_with_a_warning(race, wrong, message, caplog):
    race.add("wrong", wrong)
    with race.overrides():
        race.runs("portable", X)
        assert race.runs("portable", X) == 1
    assert [record.getMessage().partition("`wrong`: ")[2] for record in caplog.records] == [message]


def test_one_that_declines_is_left_out_silently(race, caplog):
    race.add("declining", lambda x: x + x, declines=lambda x: "not today")
    with race.overrides():
        assert race.runs("declining", X) == 0
    assert not caplog.records


def test_an_error_of_the_call_is_raised_as_it_is_and_decides_nothing(make_race):
    race = make_race(portable=lambda x, indices: slowly(F.embedding(indices, x)))
    race.add("fast", lambda x, indices: F.embedding(indices, x) * 2)
    table = gptrs.tensor([[1.0], [2.0]])
    with race.overrides():
        with pytest.raises(ExecutionError, match="7"):
            race.call(table, gptrs.tensor([7])).numpy()
        before = race.calls.get("fast", 0)
        assert race.call(table, gptrs.tensor([1])).numpy().tolist() == [[4]]
        assert race.calls["fast"] > before
        with pytest.raises(UsageError, match="integer"):
            race.call(table, gptrs.tensor([1.0]))


@pytest.mark.parametrize(
    ("found", "expected", "agree"),
    [
        (np.float32([1.0001, 2]), np.float32([1, 2]), True),
        (np.float32([1.01, 2]), np.float32([1, 2]), False),
        (np.float32([1e-5, 2]), np.float32([0, 2]), True),
        (np.float64([1.0001, 2]), np.float64([1, 2]), False),
        (np.float16([1.01, 2]), np.float16([1, 2]), True),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), True),
        (np.float32([np.nan, 1]), np.float32([1, 1]), False),
        (np.float32([-np.inf]), np.float32([np.inf]), False),
        (np.complex64([1.0001j]), np.complex64([1j]), True),
        (np.complex64([1.01j]), np.complex64([1j]), False),
        (np.int32([3]), np.int32([3]), True),
        (np.int32([3]), np.int32([4]), False),
        (np.bool_([True]), np.bool_([False]), False),
        (np.float32([]), np.float32([]), True),
        (np.float32([1]), np.float64([1]), False),
    ],
)
def test_half_of_the_digits_must_agree(found, expected, agree):
    assert (disagreement([np.asarray(found)], [np.asarray(expected)]) is None) is agree
