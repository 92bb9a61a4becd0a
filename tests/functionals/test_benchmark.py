"""The policy `benchmark` finds the fastest implementation by running them, once for each kind."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.races import Race, X, slowly
from gptrs.functionals.dispatch import benchmark_policy

pytestmark = pytest.mark.usefixtures("on_reference")


def test_the_fastest_is_found_once_and_used_from_then_on(race):
    race.add("fast", lambda x: x + x)
    race.add("slower", lambda x: slowly(slowly(x)) * 0.5)
    with race.overrides():
        assert race.runs("fast", X) > 2
        before = dict(race.calls)
        assert race.runs("fast", X) == 1
    assert race.calls == {**before, "fast": before["fast"] + 1}


def test_a_race_of_one_is_told_once(caplog: pytest.LogCaptureFixture):
    for _ in range(2):
        with gptrs.overrides({"erf": "benchmark"}):
            pass
    (record,) = caplog.records
    assert "`benchmark` of `erf` has nothing to choose from: `portable`" in record.getMessage()


def test_the_portable_one_may_be_the_fastest(make_race):
    race = make_race(portable=lambda x: x + x)
    race.add("slow", slowly)
    with race.overrides():
        race.runs("portable", X)
        before = dict(race.calls)
        assert race.runs("portable", X) == 1
    assert race.calls == {**before, "portable": before["portable"] + 1}


def test_computing_is_timed_and_not_capturing(race: Race):
    """Under jit an implementation is slow to capture, which happens once, and fast to run."""

    def captureslowly(x):
        time.sleep(0.05)
        return x + x

    race.add("slow_to_capture", captureslowly)
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

    flush = benchmark_policy.flush
    monkeypatch.setattr(benchmark_policy.time, "perf_counter", now)
    monkeypatch.setattr(
        benchmark_policy,
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


def test_an_argument_that_cannot_be_told_from_others_is_not_timed(race, caplog):
    caplog.set_level("INFO", "gptrs")
    race.add("fast", lambda x, *rest: x + x)
    with race.overrides():
        assert race.runs("portable", X, object()) == 1
    assert "cannot tell a value of type `object` from others" in caplog.text


def test_while_an_implementation_is_timed_its_functional_is_portable(make_race):
    race = make_race(portable=lambda x: x + x)
    race.add("wrapping", lambda x: slowly(race.call(x)))
    with race.overrides():
        race.runs("portable", X)
        assert race.runs("portable", X) == 1


def test_functionals_inside_of_others_are_timed_too(make_race: Callable[..., Race]):
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
