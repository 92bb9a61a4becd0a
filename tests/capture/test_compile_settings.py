"""A program that was compiled under other settings is another program."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

import gptrs
from gptrs.capture import execute
from gptrs_backend_ref.backend import RefBackend


class Configured(RefBackend):
    settings: Hashable = "fast"

    def compile_settings(self) -> Any:
        return self.settings


@pytest.fixture
def engine():
    execute.program_cache.clear()
    backend = Configured()
    with gptrs.use_backend(backend):
        yield backend


def flushes() -> int:
    """How many programs have been compiled after the flush of one more."""
    assert (gptrs.tensor([1.0]) * 2 + 1).numpy().tolist() == [3]
    return execute.program_cache.statistics.misses


def test_a_flush_compiles_under_the_settings_of_the_backend(engine):
    assert (flushes(), flushes()) == (1, 1)
    engine.settings = "small"
    assert flushes() == 2
    engine.settings = "fast"
    assert flushes() == 2
    assert execute.program_cache.statistics.misses_by_reason["backend"] == 1


def test_a_jitted_function_compiles_under_the_settings_of_the_backend(engine):
    step = gptrs.jit(lambda x: x * 2)
    for settings, compiled in (("fast", 1), ("small", 2), ("fast", 2)):
        engine.settings = settings
        assert step(gptrs.tensor([1.0])).item() == 2
        assert step.compiled == compiled


@pytest.mark.parametrize("name", ["GPTRS_OPT_PRE_ITERS", "GPTRS_OPT_POST_ITERS"])
def test_the_rounds_of_the_optimizer_are_settings(name, engine, monkeypatch):
    step = gptrs.jit(lambda x: x * 2)
    for rounds, compiled in (("1", 1), ("0", 2), ("1", 2)):
        monkeypatch.setenv(name, rounds)
        assert step(gptrs.tensor([1.0])).item() == 2
        assert (flushes(), step.compiled) == (compiled, compiled)
