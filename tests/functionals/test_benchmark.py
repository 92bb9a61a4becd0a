"""The policy `benchmark` finds the fastest implementation by running them, once for each kind."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import gptrs
from functionals.temporary import defined, implemented
from gptrs import functionals as F
from gptrs.errors import ExecutionError, UsageError
from gptrs.functionals import implementation_timing
from gptrs.functionals.agreement import disagreement

CHAIN = 300
"""Ops of the slow implementations: far more than the timing can be off by."""


@pytest.fixture(autouse=True)
def _on_reference():
    with gptrs.use_backend(gptrs.get_backend("ref")):
        yield


class Race:
    """A functional of its own, its name, and how often each implementation was called."""

    def __init__(self, *, portable: Callable[..., Any]) -> None:
        self.name = f"race_{uuid.uuid4().hex}"
        self.calls: dict[str, int] = {}
        self._scopes = ExitStack()
        counted = self._counted("portable", portable)
        counted.__name__ = self.name
        self.call = self._scopes.enter_context(defined(counted))

    def add(self, name, function, supports=None):
        predicates = {name: supports} if supports else {}
        counted = {name: self._counted(name, function)}
        self._scopes.enter_context(implemented(self.name, counted, predicates))

    def close(self):
        self._scopes.close()

    def overrides(self, policy="benchmark"):
        return gptrs.overrides({self.name: policy})

    def runs(self, name, x, *rest, **named) -> int:
        """How often an implementation is called for one call of the functional."""
        before = self.calls.get(name, 0)
        found = self.call(x, *rest, **named)
        count = self.calls.get(name, 0) - before
        np.testing.assert_allclose(found.numpy(), x.numpy() * 2, rtol=1e-5)
        return count

    def _counted(self, name, function):
        def counted(*args, **kwargs):
            self.calls[name] = self.calls.get(name, 0) + 1
            return function(*args, **kwargs)

        return counted


def _slowly(x, *rest, **named):
    """2 x: every second step of `y -> x - y` ends there."""
    y = x + x
    for _ in range(CHAIN):
        y = x - y
    return y


@pytest.fixture
def make_race():
    """Makes functionals that end with the test."""
    with ExitStack() as scopes:

        def make(portable=_slowly):
            race = Race(portable=portable)
            scopes.callback(race.close)
            return race

        yield make


@pytest.fixture
def race(make_race):
    """A functional whose portable implementation is slow."""
    return make_race()


X = gptrs.tensor([1.0, -2.0])


def test_the_fastest_is_found_once_and_used_from_then_on(race):
    race.add("fast", lambda x: x + x)
    race.add("slower", lambda x: _slowly(_slowly(x)) * 0.5)
    with race.overrides():
        assert race.runs("fast", X) > 2
        before = dict(race.calls)
        assert race.runs("fast", X) == 1
    assert race.calls == {**before, "fast": before["fast"] + 1}


def test_the_portable_one_may_be_the_fastest(make_race):
    race = make_race(portable=lambda x: x + x)
    race.add("slow", _slowly)
    with race.overrides():
        race.runs("portable", X)
        before = dict(race.calls)
        assert race.runs("portable", X) == 1
    assert race.calls == {**before, "portable": before["portable"] + 1}


def test_computing_is_timed_and_not_capturing(race):
    """Under jit an implementation is slow to capture, which happens once, and fast to run."""

    def capture_slowly(x):
        time.sleep(0.05)
        return x + x

    race.add("slow_to_capture", capture_slowly)
    step = gptrs.jit(race.call)
    with race.overrides():
        np.testing.assert_allclose(step(X).numpy(), [2, -4])
        program = step.lower(X)
    assert [i.op.name for i in program.main.body.instructions] == ["add"]


def test_operands_are_computed_before_and_results_within_the_timing(race, monkeypatch):
    race.add("fast", lambda x: x + x)
    events: list[str] = []
    clock = itertools.count()

    def now():
        events.append("clock")
        return float(next(clock))

    flush = implementation_timing.flush
    monkeypatch.setattr(implementation_timing.time, "perf_counter", now)
    monkeypatch.setattr(
        implementation_timing,
        "flush",
        lambda tensors: (events.append("flush"), flush(tensors)),
    )
    with race.overrides():
        race.call(X + 1)
    runs = ["clock", "flush", "clock"]
    assert events[:2] == ["flush", "flush"]  # the operands, then the run that compiles
    assert events[2:5] == runs


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (gptrs.tensor([1.0]), gptrs.tensor([1.0, 2.0])),
        (gptrs.tensor([1.0]), gptrs.tensor(np.array([1.0], np.float16))),
    ],
)
def test_another_kind_of_operand_is_another_race(race, first, second):
    race.add("fast", lambda x: x + x)
    with race.overrides():
        assert race.runs("fast", first) > 1
        assert race.runs("fast", second) > 1
        assert race.runs("fast", first) == 1


def test_other_arguments_are_another_race(race):
    race.add("fast", lambda x, *rest, **named: x + x)
    with race.overrides():
        for rest, named in [((), {}), ((1,), {}), ((1.0,), {}), ((), {"n": 1}), ((), {"n": 2})]:
            assert race.runs("fast", X, *rest, **named) > 1
            assert race.runs("fast", X, *rest, **named) == 1


def test_another_backend_is_another_race(race):
    race.add("fast", lambda x: x + x)
    with race.overrides():
        assert race.runs("fast", gptrs.tensor([1.0])) > 1
        with gptrs.use_backend(gptrs.get_backend("ref", threads=2)):
            assert race.runs("fast", gptrs.tensor([1.0])) > 1


def test_an_implementation_that_comes_later_takes_part(race):
    with race.overrides():
        assert race.runs("portable", X) == 1  # there is nothing to compare it with
        race.add("fast", lambda x: x + x)
        assert race.runs("fast", X) > 1


def test_only_so_many_decisions_are_kept(race):
    race.add("fast", lambda x: x + x)
    one, two, three = (gptrs.tensor([1.0] * size) for size in (1, 2, 3))
    with race.overrides("benchmark(cache=2)"):
        assert race.runs("fast", one) > 1
        assert race.runs("fast", two) > 1
        assert race.runs("fast", one) == 1  # now `two` is the one not used for longest
        assert race.runs("fast", three) > 1
        assert race.runs("fast", one) == 1
        assert race.runs("fast", two) > 1


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
    race.add("declining", lambda x: x + x, supports=lambda x: "not today")
    with race.overrides():
        assert race.runs("declining", X) == 0
    assert not caplog.records


def test_an_error_of_the_call_is_raised_as_it_is_and_decides_nothing(make_race):
    race = make_race(portable=lambda x, indices: _slowly(F.embedding(indices, x)))
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


def test_a_capture_is_timed_with_random_floats_of_the_same_kind(race):
    race.add("fast", lambda x: x + x)
    step = gptrs.jit(race.call)
    with race.overrides():
        np.testing.assert_allclose(step(X).numpy(), [2, -4])
        captured = step.lower(X)
        before = dict(race.calls)
        step(gptrs.tensor([3.0, 4.0]))
    assert [i.op.name for i in captured.main.body.instructions] == ["add"]
    assert race.calls == before


def test_a_capture_uses_the_weights_that_it_brings_along(make_race):
    seen: list[object] = []

    def scaled(x, scale):
        seen.append(scale)
        return _slowly(x) * scale

    race = make_race(portable=scaled)
    race.add("fast", lambda x, scale: (x + x) * scale)
    scale = gptrs.tensor([1.0, 10.0])
    with race.overrides():
        found = gptrs.jit(lambda x: race.call(x, scale))(X).numpy()
    assert found.tolist() == [2, -40]
    assert all(operand is scale for operand in seen)


def test_a_capture_with_integers_uses_the_portable_one_and_says_so_once(race, caplog):
    caplog.set_level("INFO", "gptrs")
    race.add("fast", lambda x: x + x)
    step = gptrs.jit(race.call)
    with race.overrides():
        assert step(gptrs.tensor([1, 2])).numpy().tolist() == [2, 4]
        assert step(gptrs.tensor([1, 2, 3])).numpy().tolist() == [2, 4, 6]
    assert race.calls == {"portable": 2}
    assert [record.getMessage() for record in caplog.records] == [
        f"`benchmark` of `{race.name}` uses `portable` for a call:"
        " the values of integer operands are not known in a capture"
    ]
    with race.overrides():  # where they are known, they are used
        assert race.runs("fast", gptrs.tensor([1, 2])) > 1


def test_an_argument_that_cannot_be_told_from_others_is_not_timed(race, caplog):
    caplog.set_level("INFO", "gptrs")
    race.add("fast", lambda x, *rest: x + x)
    with race.overrides():
        assert race.runs("portable", X, object()) == 1
    assert "cannot tell a value of type `object` from others" in caplog.text


def test_while_an_implementation_is_timed_its_functional_is_portable(make_race):
    race = make_race(portable=lambda x: x + x)
    race.add("wrapping", lambda x: _slowly(race.call(x)))
    with race.overrides():
        race.runs("portable", X)
        assert race.runs("portable", X) == 1


def test_functionals_inside_of_others_are_timed_too(make_race):
    inner, outer = make_race(), make_race()
    inner.add("fast", lambda x: x + x)
    outer.add("fast", lambda x: inner.call(x) * 1)
    with inner.overrides(), outer.overrides():
        step = gptrs.jit(outer.call)
        np.testing.assert_allclose(step(X).numpy(), [2, -4])
        names = [i.op.name for i in step.lower(X).main.body.instructions]
    assert "sub" not in names


def test_eager_mode_is_timed_too(race, monkeypatch):
    monkeypatch.setenv("GPTRS_EAGER", "1")
    race.add("fast", lambda x: x + x)
    with race.overrides():
        assert race.runs("fast", X) > 1
        assert race.runs("fast", X) == 1


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
