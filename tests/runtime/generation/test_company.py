"""Real models: the scores of a text do not depend on its company, on chunks, or on pages found."""

from __future__ import annotations

import random

import pytest

from gptrs.runtime.generation.engine import Engine
from gptrs.runtime.generation.options import GenerationOptions
from gptrs.runtime.generation.paged_cache import PagedCache
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.generation.setup import GenerationSetup
from gptrs.runtime.load import load_model

OPTIONS = GenerationOptions(
    sampling=Sampling(temperature=0.9, seed=4), ignore_eos=True, logprobs=0, context=64
)
SHARED = [5, 9, 200, 31, 7, 8] * 7


@pytest.fixture(scope="module")
def on_backend(directory, backend):
    return load_model(directory, backend=backend.name)


@pytest.fixture(scope="module")
def setup(on_backend):
    return GenerationSetup(on_backend, OPTIONS)


def random_prompt(rng):
    start = SHARED[: rng.choice([0, 0, 20, 40])]
    return [*start, *(rng.randrange(1, 300) for _ in range(rng.randint(1, 12)))]


def generate(setup, cache, chunk, prompts, counts):
    """Run the prompts together; return their tokens with the probabilities of these."""
    engine = Engine(cache, chunk=chunk)
    texts = [setup.new_text(*text) for text in zip(prompts, counts, strict=True)]
    for text in texts:
        engine.add(text)
    while engine.busy:
        engine.step()
    scores = [text.generation().logprobs for text in texts]
    return [[(score.token, score.logprob) for score in found] for found in scores]


def new_cache(model, setup):
    return PagedCache(model.causal_lm(), model.backend, setup.cache.dtype, None)


@pytest.mark.parametrize("seed", range(200))
def test_a_text_among_others_is_the_text_alone(on_backend, setup, seed):
    rng = random.Random(seed)
    prompts = [random_prompt(rng) for _ in range(rng.randint(2, 8))]
    counts = [rng.randint(1, 6) for _ in prompts]
    cache = new_cache(on_backend, setup)
    together = generate(setup, cache, rng.choice([3, 8, 64]), prompts, counts)
    for prompt, count, found in zip(prompts, counts, together, strict=True):
        (alone,) = generate(setup, new_cache(on_backend, setup), 64, [prompt], [count])
        assert_same(on_backend, found, alone)
        (again,) = generate(setup, cache, 64, [prompt], [count])
        assert_same(on_backend, again, alone)


def assert_same(model, found, expected):
    if model.backend.name == "ref":
        assert [token for token, _ in found] == [token for token, _ in expected]
        expected_scores = [score for _, score in expected]
        assert [score for _, score in found] == pytest.approx(expected_scores, abs=1e-4)
    else:
        assert found == expected, "bit for bit"
