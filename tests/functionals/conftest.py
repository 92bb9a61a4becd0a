"""Functionals that end with the test that needs them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from functionals.races import Race, slowly
from gptrs.capture.caching.optimized_programs import OptimizedPrograms
from gptrs.functionals.dispatch import benchmark_policy


@pytest.fixture(autouse=True)
def no_kept_choices(monkeypatch):
    """Races of these tests are run, whatever an earlier process kept."""
    monkeypatch.setattr(benchmark_policy, "optimized_programs", lambda: OptimizedPrograms(None))


@pytest.fixture
def make_race():
    """Makes functionals that end with the test."""
    with ExitStack() as scopes:

        def make(portable=slowly):
            race = Race(portable=portable)
            scopes.callback(race.close)
            return race

        yield make


@pytest.fixture
def race(make_race):
    """A functional whose portable implementation is slow."""
    return make_race()
