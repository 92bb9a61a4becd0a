"""Derivatives of random programs: both modes agree, and so do backends and the reference."""

from __future__ import annotations

import pytest

import fuzz_derivatives
from gptrs.backend.contract import Backend
from gptrs_conformance import derivatives

SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_derivatives_of_random_programs(backend: Backend, first: int) -> None:
    seeds = range(first, first + (10 if backend.name == "ref" else 2))
    flaws = [fuzz_derivatives.flaw_of(seed, [backend], 15) for seed in seeds]
    assert set(flaws) <= {None, ""}
    assert "" in flaws


def test_a_derivative_that_differs_is_found(
    reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = derivatives.push

    def twice(*args: object) -> object:
        found = right(*args)  # type: ignore
        return found._replace(
            tangents=[None if each is None else each + each for each in found.tangents]
        )

    monkeypatch.setattr(derivatives, "push", twice)
    flaws = [fuzz_derivatives.flaw_of(seed, [], 15) for seed in range(10)]
    assert any(flaw and "forward mode" in flaw for flaw in flaws)
