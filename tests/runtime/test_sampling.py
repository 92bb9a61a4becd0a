"""The choice of the next token: distribution, order of truncations, seeds, settings of a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gptrs.errors import ExecutionError, ModelError, UsageError
from gptrs_runtime.generation.model_settings import configured_sampling
from gptrs_runtime.generation.sampling import Sampler, candidates
from gptrs_runtime.generation.sampling_options import Sampling

LOGITS = np.array([1.0, 3.0, -2.0, 2.0, 0.5, 3.0 - 1e-3], np.float32)


def draws(sampling: Sampling, logits: np.ndarray, count: int = 4000) -> np.ndarray:
    """Relative frequency of each token in `count` draws."""
    sampler = Sampler(sampling)
    tokens = [sampler.choose(logits) for _ in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    sampling = Sampling(temperature=temperature, seed=1)
    expected = softmax(LOGITS / temperature)
    # Five standard deviations of a frequency among 4000 draws.
    assert np.abs(draws(sampling, LOGITS) - expected).max() < 5 * 0.5 / math.sqrt(4000)


def test_temperature_zero_takes_the_first_of_equal_logits():
    logits = np.array([0, 7, 1, 7], np.float32)
    assert Sampler(Sampling(temperature=0)).choose(logits) == 1


def test_a_tiny_temperature_is_greedy():
    assert draws(Sampling(temperature=1e-310, seed=0), LOGITS, 20)[1] == 1


def test_top_k_one_is_greedy_at_any_temperature():
    assert draws(Sampling(temperature=50, top_k=1, seed=0), LOGITS, 50)[1] == 1


def test_ties_at_the_edge_of_top_k_fall_to_the_smaller_token():
    frequencies = draws(Sampling(top_k=2, seed=0), np.array([1, 2, 1, 1], np.float32), 400)
    assert set(np.flatnonzero(frequencies)) == {0, 1}


def test_top_p_is_measured_on_what_top_k_left():
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1]))
    # Of the two that top-k keeps, the first has 5/7 > 0.6 of the probability.
    frequencies = draws(Sampling(top_k=2, top_p=0.6, seed=0), logits, 200)
    assert set(np.flatnonzero(frequencies)) == {0}


def test_top_p_keeps_the_token_that_reaches_p():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    frequencies = draws(Sampling(top_p=0.6, seed=0), logits, 400)
    assert set(np.flatnonzero(frequencies)) == {0, 1}


@pytest.mark.parametrize("top_k", [None, 2])
def test_top_p_of_0_keeps_the_likeliest_token_alone(top_k):
    logits = np.log(np.array([0.1, 0.4, 0.4, 0.1]))
    sampling = Sampling(temperature=5, top_p=0, top_k=top_k, seed=0)
    assert draws(sampling, logits, 40)[1] == 1
    tokens, weights = candidates(logits, sampling)
    assert (list(tokens), list(weights)) == ([1], [1])
    assert Sampler(sampling).takes_largest
    assert not Sampler(Sampling(top_p=0.1)).takes_largest


def test_a_logit_of_minus_infinity_is_never_drawn():
    logits = np.array([0, -np.inf, 0], np.float32)
    assert draws(Sampling(temperature=100, seed=0), logits, 300)[1] == 0


def test_equal_seeds_give_equal_tokens_and_others_differ():
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.choose(logits) for _ in range(20)]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert tokens(None) != tokens(None)
    assert tokens(-1) == tokens(2**64 - 1) != tokens(1)
    assert tokens(-(2**63)) == tokens(2**63) != tokens(0)
    assert tokens(2**64) != tokens(0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_are_an_error(bad, temperature):
    logits = np.array([0, bad, 1], np.float32)
    with pytest.raises(ExecutionError, match="largest logit"):
        Sampler(Sampling(temperature=temperature)).choose(logits)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"epsilon_cutoff": 1.5}, "epsilon_cutoff"),
        ({"eta_cutoff": -1}, "eta_cutoff"),
        ({"repetition_penalty": 0}, "repetition penalty"),
        ({"repetition_penalty": math.inf}, "repetition penalty"),
        ({"presence_penalty": math.nan}, "presence penalty"),
        ({"frequency_penalty": math.inf}, "frequency penalty"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, {}, Sampling(temperature=0)),
        ({"temperature": 0.7}, {}, Sampling(temperature=0)),
        ({}, {"seed": 4}, Sampling(temperature=0, seed=4)),
        ({"do_sample": True}, {}, Sampling(temperature=1, top_k=50)),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
            {"top_k": 3},
            Sampling(temperature=0.7, top_k=3, top_p=0.9),
        ),
        ({"do_sample": True, "top_k": 50}, {"top_k": 0}, Sampling()),
        ({"do_sample": True, "top_k": 0}, {}, Sampling()),
        ({"temperature": 0.7}, {"top_p": 0.5}, Sampling(temperature=0.7, top_p=0.5)),
        (
            {"do_sample": True, "typical_p": 0.4, "epsilon_cutoff": 0.0, "eta_cutoff": 0.1},
            {"top_k": 0},
            Sampling(typical_p=0.4, eta_cutoff=0.1),
        ),
        ({}, {"epsilon_cutoff": 0.1}, Sampling(epsilon_cutoff=0.1)),
        (
            {"do_sample": True, "typical_p": 0.4, "eta_cutoff": 0.1, "top_p": 0.9},
            {"top_k": 0, "typical_p": 1, "eta_cutoff": 0, "top_p": 1},
            Sampling(),
        ),
        ({"do_sample": True}, {"temperature": 0.0}, Sampling(temperature=0, top_k=50)),
        ({"do_sample": True, "min_p": 0.2}, {}, Sampling(top_k=50, min_p=0.2)),
        ({"do_sample": True, "min_p": 0.2}, {"min_p": 0.0}, Sampling(top_k=50)),
    ],
)
def test_given_values_replace_single_fields_of_the_model(settings, given, expected):
    assert configured_sampling(settings, **given) == expected


@pytest.mark.parametrize(
    "bad", [{"temperature": "hot"}, {"top_k": -3}, {"top_p": 2}, {"top_k": True}]
)
def test_bad_settings_of_the_model_name_its_file(bad):
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        configured_sampling({"do_sample": True, **bad})


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"top_p": 0.05},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.9},
    ],
    ids=str,
)
def test_the_distribution_is_that_of_transformers(settings):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    warpers = {
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
    }
    logits = np.random.default_rng(8).normal(0, 3, 60).astype(np.float32)
    scores = torch.from_numpy(logits)[None]
    for name in ("temperature", "top_k", "top_p"):  # the order in which `generate` applies them
        if name in settings:
            scores = warpers[name](settings[name])(None, scores)
    expected = torch.softmax(scores, -1)[0].numpy()

    frequencies = draws(Sampling(**settings, seed=2), logits)
    # A token that transformers cuts off is never drawn; the others come as often as they should.
    assert set(np.flatnonzero(frequencies)) <= set(np.flatnonzero(expected))
    assert np.abs(frequencies - expected).max() < 5 * 0.5 / math.sqrt(4000)


_TRUNCATIONS = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_p": 0.01},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"temperature": 2.5, "top_p": 0.97},
    {"temperature": 0.3, "min_p": 0.001},
    {"temperature": 1.5, "top_k": 100, "top_p": 0.8, "min_p": 0.03},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"typical_p": 0.999, "temperature": 2.0},
    {"epsilon_cutoff": 0.02},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.3},
    {"eta_cutoff": 1e-3, "temperature": 3.0},
    {"top_k": 30, "typical_p": 0.7, "epsilon_cutoff": 0.01, "eta_cutoff": 0.05},
    {"top_p": 0.95, "typical_p": 0.8, "eta_cutoff": 0.02, "temperature": 2.0},
]


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("settings", _TRUNCATIONS, ids=str)
@pytest.mark.parametrize("size", [50, 3000])
def test_the_tokens_that_may_be_drawn_are_those_of_transformers(settings, size):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    warpers = {
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
        "typical_p": transformers.TypicalLogitsWarper,
        "epsilon_cutoff": transformers.EpsilonLogitsWarper,
        "eta_cutoff": transformers.EtaLogitsWarper,
    }
    logits = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    scores = torch.from_numpy(logits)[None]
    for name, make in warpers.items():  # the order in which `generate` applies them
        if name in settings:
            scores = make(settings[name])(None, scores)
    expected = torch.softmax(scores, -1)[0].numpy()

    tokens, weights = candidates(logits, Sampling(**settings))
    assert sorted(map(int, tokens)) == np.flatnonzero(np.isfinite(scores[0].numpy())).tolist()
    np.testing.assert_allclose(
        weights / weights.sum(), expected[np.asarray(tokens)], rtol=1e-4, atol=1e-9
    )


@pytest.mark.parametrize("count", [1, 7, 64, 500, 4999, 5000, 6000])
def test_top_k_finds_the_largest_of_many(count):
    # Few values, so that there are ties at the edge.
    logits = np.random.default_rng(count).integers(0, 40, 5000).astype(np.float32)
    expected = np.argsort(-logits, kind="stable")[:count]
    tokens, _ = candidates(logits, Sampling(top_k=count))
    np.testing.assert_array_equal(tokens, expected)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.9, 0.999, 1 - 1e-12])
def test_top_p_takes_the_heaviest_in_order(spread, top_p):
    """However many they are: the shortest beginning of the sorted weights with that share."""
    logits = np.random.default_rng(3).normal(0, spread, 3000).astype(np.float32)
    logits[100:200] = logits[0]  # ties
    tokens, _ = candidates(logits, Sampling(top_p=top_p))
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits - logits.max())[order]
    before = np.cumsum(weights, dtype=np.float64) - weights
    share = top_p * float(weights.sum(dtype=np.float64))
    assert len(tokens) == max(1, int(np.searchsorted(before, share)))
    assert sorted(tokens) == sorted(order[: len(tokens)])


def test_streams_of_a_seed_are_independent():
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)

    def tokens(stream: int) -> tuple[int, ...]:
        sampler = Sampler(Sampling(seed=3), stream)
        return tuple(sampler.choose(logits) for _ in range(20))

    assert len({tokens(0), tokens(1), tokens(2)}) == 3
    assert tokens(1) == tokens(1)
