"""Load on an engine: what is asked, and how rounds become figures."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from gptrs_observe.measure.serving_load import (
    LoadRun,
    TextTimes,
    figures,
    later_ms,
    load_requests,
    rate_ratio,
    spread,
)


def test_as_many_requests_have_as_many_tokens():
    first, second = (load_requests(8, 100, 32, 64, seed) for seed in (1, (1, 4)))
    assert [request.tokens for request in first] != [request.tokens for request in second]
    for requests in (first, second):
        lengths = [len(request.tokens) for request in requests]
        assert sorted(lengths) == [18, 22, 26, 30, 34, 38, 42, 46]
        assert sum(request.new_tokens for request in requests) == 8 * 64
    assert load_requests(8, 100, 32, 64, 1) == first


def _run(seconds: float, first: float) -> LoadRun:
    return LoadRun(seconds, [TextTimes(1.0, [1 + first, 1 + 2 * first], 2)])


RUNS = [_run(seconds, 0.1) for seconds in (1, 2, 4, 4, 1)]
SLOWER = [
    _run(2 * seconds, 0.1 + late)
    for seconds, late in ((1, 0), (2, 0.1), (4, 0.2), (4, 0.3), (1, 0.4))
]


def test_rates_are_medians_of_rounds_with_their_middle_half():
    found = figures("engine", 1, RUNS)
    assert (found.tokens_per_s_25, found.tokens_per_s, found.tokens_per_s_75) == (0.5, 1, 2)
    assert (found.requests, found.requests_per_s) == (1, 0.5)
    assert found.first_token_ms == pytest.approx(100)


def test_what_is_compared_is_of_the_same_round():
    """The machine may change from round to round: the ratio of each is the same."""
    assert rate_ratio(SLOWER, RUNS) == spread([0.5])
    assert astuple(later_ms(SLOWER, RUNS)) == pytest.approx((200, 100, 300))
