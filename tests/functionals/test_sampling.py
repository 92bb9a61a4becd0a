"""The functionals that choose tokens agree with transformers, with the runtime, and with chance."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.errors import ExecutionError, UnsupportedError, UsageError
from gptrs.ir import dtypes
from gptrs_conformance.uses.sampling import min_p, top_k, top_p
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.sampling_options import Sampling


def _seed(key: int, counter: int = 0) -> gptrs.Tensor:
    return gptrs.tensor([key, counter], dtypes.ui64)


@pytest.fixture(autouse=True)
def _on_backend(backend):
    with gptrs.use_backend(backend):
        try:
            F.sample(F.top_k_filter(F.top_p_filter(_fifty(), 0.5), 3), _seed(1)).numpy()
        except UnsupportedError as error:
            assert backend.name != "ref"
            pytest.skip(str(error))
        yield


def _logits(*shape: int, seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _fifty() -> gptrs.Tensor:
    return gptrs.tensor(_logits(4, 50))


NONE = float("-inf")
WARPERS = {
    "TopKLogitsWarper": (lambda x: F.top_k_filter(x, 7), {"top_k": 7}),
    "TopPLogitsWarper": (lambda x: F.top_p_filter(x, 0.9), {"top_p": 0.9}),
    "MinPLogitsWarper": (lambda x: F.min_p_filter(x, 0.05), {"min_p": 0.05}),
}


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("seed", range(5))
def test_filters_are_the_warpers_of_transformers(name, seed):
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    ours, settings = WARPERS[name]
    logits = _logits(4, 50, seed=seed)
    theirs = getattr(process, name)(**settings)(None, torch.from_numpy(logits))
    np.testing.assert_array_equal(ours(gptrs.tensor(logits)).numpy(), theirs.numpy())


@pytest.mark.long
def test_repetition_penalty_is_that_of_transformers():
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    logits = _logits(4, 50)
    tokens = np.random.default_rng(1).integers(0, 50, (4, 30))
    penalize = process.RepetitionPenaltyLogitsProcessor(1.3)
    theirs = penalize(torch.from_numpy(tokens), torch.from_numpy(logits))
    counts = F.token_counts(gptrs.tensor(tokens), 50)
    ours = F.repetition_penalty(gptrs.tensor(logits), counts, 1.3)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_temperature_gives_the_distribution_of_transformers():
    logits = _logits(4, 50)
    ours = F.softmax(F.apply_temperature(gptrs.tensor(logits), 0.6)).numpy()
    np.testing.assert_allclose(ours, F.softmax(gptrs.tensor(logits / 0.6)).numpy(), atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-40, 1e-20, 1e-3])
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f32])
def test_a_tiny_temperature_leaves_the_largest(temperature, dtype):
    logits = F.cast(gptrs.tensor(np.array([3.0, 90.0, NONE, 80.0], np.float32)), dtype)
    found = F.softmax(F.apply_temperature(logits, temperature)).numpy()
    np.testing.assert_array_equal(found.astype(np.float32), [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("k", "p", "temperature"), [(None, None, 0.5), (5, None, 1.0), (None, 0.7, 2.0), (6, 0.8, 0.7)]
)
def test_what_remains_is_what_the_generator_draws_from(k, p, temperature):
    logits = np.round(_logits(12), 1)
    logits[[3, 7]] = logits[5]
    x = gptrs.tensor(logits)
    x = x if k is None else F.top_k_filter(x, k)
    x = F.apply_temperature(x, temperature)
    x = x if p is None else F.top_p_filter(x, p)
    sampler = Sampler(Sampling(temperature, k, p, seed=1))
    drawn = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=12) / 4000
    np.testing.assert_allclose(F.softmax(x).numpy(), drawn, atol=0.05)
    assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(np.isfinite(x.numpy())))


@pytest.mark.parametrize("shape", [(1,), (6,), (2, 3, 4), (0, 4)])
def test_ranks_and_empty_batches(shape):
    logits = _logits(*shape)
    x = gptrs.tensor(logits)
    np.testing.assert_array_equal(F.greedy(x).numpy(), np.argmax(logits, -1))
    for found, wanted in (
        (F.top_k_filter(x, 2), top_k(logits, 2)),
        (F.top_p_filter(x, 0.6), top_p(logits, 0.6) if logits.size else logits),
        (F.min_p_filter(x, 0.3), min_p(logits, 0.3) if logits.size else logits),
    ):
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert F.sample(x, _seed(1)).type == F.greedy(x).type


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64])
def test_at_least_the_largest_is_kept(dtype):
    x = F.cast(_fifty(), dtype)
    best = F.greedy(x).numpy()
    for filtered in (
        F.top_k_filter(x, 1),
        F.top_p_filter(x, 1e-45),
        F.top_p_filter(x, 1e-300),
        F.min_p_filter(x, 1.0),
    ):
        assert filtered.type == x.type
        kept = np.isfinite(filtered.numpy().astype(np.float64))
        np.testing.assert_array_equal(kept.argmax(-1), best)
        # Other logits may have been rounded to the largest one, but only min-p keeps them all.
        assert (kept.sum(-1) >= 1).all()


def test_filters_that_let_all_pass():
    for filtered in (
        F.top_k_filter(_fifty(), 50),
        F.top_k_filter(_fifty(), 10**6),
        F.top_p_filter(_fifty(), 1.0),
        F.min_p_filter(_fifty(), 0.0),
    ):
        np.testing.assert_array_equal(filtered.numpy(), _fifty().numpy())


def test_ties_fall_to_the_smaller_token():
    ties = gptrs.tensor(np.array([1, 2, 2, 0, 2], np.float32))
    assert F.greedy(ties).item() == 1
    np.testing.assert_array_equal(F.top_k_filter(ties, 2).numpy(), [NONE, 2, 2, NONE, NONE])
    np.testing.assert_array_equal(F.top_p_filter(ties, 0.4).numpy(), [NONE, 2, 2, NONE, NONE])
    np.testing.assert_array_equal(F.min_p_filter(ties, 0.9).numpy(), [NONE, 2, 2, NONE, 2])


def test_draws_follow_the_probabilities():
    probabilities = np.array([0.5, 0.25, 0.0, 0.2, 0.05])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities).astype(np.float32)
    rows = gptrs.tensor(np.tile(logits, (20000, 1)))
    counts = np.bincount(F.sample(rows, _seed(7)).numpy(), minlength=5)
    assert counts[2] == 0
    expected = 20000 * probabilities[probabilities > 0]
    statistic = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    assert statistic < 16.3, "the 99.9th percentile of chi-squared with 3 degrees of freedom"


def test_a_seed_decides_the_draw():
    first, again, other = (F.sample(_fifty() * 0.1, _seed(key)).numpy() for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_only_token_left_is_drawn_where_the_random_number_is_zero():
    """One in 2^24 is; element 1 of this seed."""
    seed = _seed(5, 2920362)
    assert primitives.rng_uniform(seed, (4,)).numpy()[1] == 0
    only = gptrs.tensor(np.array([NONE, 0, NONE, NONE], np.float32))
    assert F.sample(only, seed).item() == 1


def test_penalties_lower_tokens_that_occurred():
    logits = gptrs.tensor(np.array([[2.0, -2.0, 1.0, 0.0]], np.float32))
    counts = F.token_counts(gptrs.tensor([[0, 0, 1]]), 4)
    np.testing.assert_array_equal(counts.numpy(), [[2, 1, 0, 0]])
    for found, wanted in (
        (F.repetition_penalty(logits, counts, 2.0), [[1, -4, 1, 0]]),
        (F.presence_penalty(logits, counts, 0.5), [[1.5, -2.5, 1, 0]]),
        (F.frequency_penalty(logits, counts, 0.5), [[1, -2.5, 1, 0]]),
    ):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_counts_of_nothing_and_of_padded_rows():
    none = F.token_counts(gptrs.tensor(np.zeros((2, 0), np.int64)), 3)
    np.testing.assert_array_equal(none.numpy(), np.zeros((2, 3)))
    mask = gptrs.tensor(np.array([[True, True, False]]))
    padded = F.token_counts(gptrs.tensor(np.array([[2, 2, 0]], np.int32)), 3, mask)
    np.testing.assert_array_equal(padded.numpy(), [[0, 0, 2]])


def test_a_token_outside_the_vocabulary_is_an_error_when_it_runs():
    with pytest.raises(ExecutionError, match="index 4"):
        F.token_counts(gptrs.tensor([[0, 4]]), 4).numpy()


def test_one_step_is_compiled_for_all_draws():
    @gptrs.jit
    def choose(logits, seed):
        return F.sample(
            F.top_p_filter(F.apply_temperature(F.top_k_filter(logits, 9), 0.8), 0.9), seed
        )

    found = {tuple(choose(_fifty(), _seed(1, counter)).numpy()) for counter in range(0, 4000, 400)}
    assert choose.compiled == 1
    assert len(found) > 1


COUNTS = gptrs.tensor(np.zeros((4, 50), np.int64))
REFUSALS = [
    (
        lambda: F.greedy(gptrs.tensor([1])),
        "`greedy` needs a floating-point `logits`, got `si64[1]`",
    ),
    (
        lambda: F.greedy(gptrs.tensor(np.zeros((2, 0), np.float32))),
        "`greedy` needs logits [..., V] with V >= 1, got `f32[2, 0]`",
    ),
    (
        lambda: F.sample(gptrs.tensor(1.0), _seed(1)),
        "`sample` needs logits [..., V] with V >= 1, got `f32[]`",
    ),
    (
        lambda: F.sample(F.cast(_fifty(), dtypes.f8e5m2), _seed(1)),
        "`sample` needs logits of f16, bf16, f32 or f64, got `f8e5m2[4, 50]`",
    ),
    (
        lambda: F.sample(_fifty(), gptrs.tensor([1, 2])),
        "`sample` needs a seed of `ui64[2]`, got `si64[2]`",
    ),
    (
        lambda: F.apply_temperature(_fifty(), 0.0),
        "`apply_temperature` needs a finite temperature above 0, got 0.0",
    ),
    (lambda: F.top_k_filter(_fifty(), 0), "`top_k_filter` needs a k of at least 1, got 0"),
    (
        lambda: F.top_p_filter(_fifty(), 0.0),
        "`top_p_filter` needs a p above 0 and at most 1, got 0.0",
    ),
    (
        lambda: F.top_p_filter(_fifty(), float("nan")),
        "`top_p_filter` needs a p above 0 and at most 1, got nan",
    ),
    (lambda: F.min_p_filter(_fifty(), 1.5), "`min_p_filter` needs a p in [0, 1], got 1.5"),
    (
        lambda: F.token_counts(_fifty(), 3),
        "`token_counts` needs an integer `tokens`, got `f32[4, 50]`",
    ),
    (
        lambda: F.token_counts(gptrs.tensor(3), 4),
        "`token_counts` needs `tokens` of rank 1 or more and a size of at least 1,"
        " got `si64[]` and 4",
    ),
    (
        lambda: F.token_counts(gptrs.tensor([3]), 4, gptrs.tensor([1])),
        "`token_counts` needs a mask of `i1[1]`, got `si64[1]`",
    ),
    (
        lambda: F.repetition_penalty(_fifty(), COUNTS, 0.0),
        "`repetition_penalty` needs a finite penalty above 0, got 0.0",
    ),
    (
        lambda: F.presence_penalty(_fifty(), COUNTS, float("inf")),
        "`presence_penalty` needs a finite penalty, got inf",
    ),
    (
        lambda: F.frequency_penalty(_fifty(), gptrs.tensor([1]), 0.5),
        "`frequency_penalty` needs `counts` of shape [4, 50], got `si64[1]`",
    ),
    (
        lambda: F.frequency_penalty(_fifty(), _fifty(), 0.5),
        "`frequency_penalty` needs an integer `counts`, got `f32[4, 50]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message == message
