"""The policy `benchmark` in a capture, where only the types of operands are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.races import Race, X, slowly

pytestmark = pytest.mark.usefixtures("on_reference")


def test_a_capture_is_timed_with_random_floats_of_the_same_kind(race: Race):
    race.add("fast", lambda x: x + x)
    step = gptrs.jit(race.call)
    with race.overrides():
        np.testing.assert_allclose(step(X).numpy(), [2, -4])
        captured = step.lower(X)
        before = dict(race.calls)
        step(gptrs.tensor([3.0, 4.0]))
    assert [i.op.name for i in captured.main.body.instructions] == ["add"]
    assert race.calls == before


def test_a_capture_uses_the_weights_that_it_brings_along(make_race: Callable[..., Race]):
    seen: list[object] = []

    def scaled(x, scale):
        seen.append(scale)
        return slowly(x) * scale

    race = make_race(portable=scaled)
    race.add("fast", lambda x, scale: (x + x) * scale)
    scale = gptrs.tensor([1.0, 10.0])
    with race.overrides():
        found = gptrs.jit(lambda x: race.call(x, scale))(X).numpy()
    assert found.tolist() == [2, -40]
    assert all(operand is scale for operand in seen)


def test_a_capture_with_integers_uses_the_portable_one_and_says_so_once(race: Race, caplog):
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
