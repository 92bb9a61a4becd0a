"""Penalties and restrictions: transformers' processors, OpenAI's definition, counting."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.runtime.generation.penalties import Penalties, SeenNgrams, TokenCounts
from gptrs.runtime.generation.restrictions import Restrictions
from gptrs.runtime.generation.sampling import Sampling

SIZE = 40
PROMPT = [3, 7, 3, 9]
SAID = [7, 1, 3, 7, 1]
ENDS = frozenset({5, 1})


def applied(sampling: Sampling, restrictions: Restrictions, said: list[int]) -> np.ndarray:
    """Our logits after the prompt and `said`."""
    penalties = Penalties(sampling, restrictions, ENDS, PROMPT)
    for token in said:
        penalties.add(token)
    assert not penalties.is_empty
    return penalties.applied(logits())


def logits() -> np.ndarray:
    return np.random.default_rng(4).normal(0, 3, SIZE).astype(np.float32)


def theirs(processor: object, said: list[int]) -> np.ndarray:
    torch = pytest.importorskip("torch", reason="parity needs torch")
    return processor(torch.tensor([[*PROMPT, *said]]), torch.from_numpy(logits())[None])[0].numpy()


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="parity needs transformers")


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(transformers, penalty):
    expected = theirs(transformers.RepetitionPenaltyLogitsProcessor(penalty), SAID)
    ours = applied(Sampling(repetition_penalty=penalty), Restrictions(), SAID)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("said", [[], SAID], ids=str)
def test_repeated_rows_are_those_of_transformers(transformers, size, said):
    expected = theirs(transformers.NoRepeatNGramLogitsProcessor(size), said)
    ours = applied(Sampling(), Restrictions(no_repeat_ngram_size=size), said)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("count", [3, 5, 6])
def test_early_ends_are_those_of_transformers(transformers, count):
    make = transformers.MinNewTokensLengthLogitsProcessor
    expected = theirs(make(len(PROMPT), count, list(ENDS)), SAID)
    ours = applied(Sampling(), Restrictions(min_new_tokens=count), SAID)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("said", [[], SAID], ids=str)
def test_suppressed_tokens_are_those_of_transformers(transformers, said):
    make = transformers.SuppressTokensAtBeginLogitsProcessor
    expected = theirs(make([2, 8], len(PROMPT)), said)
    np.testing.assert_array_equal(
        applied(Sampling(), Restrictions(begin_suppress=(2, 8)), said), expected
    )
    always = theirs(transformers.SuppressTokensLogitsProcessor([2, 8, 11]), said)
    ours = applied(Sampling(), Restrictions(suppress=(2, 8, 11, SIZE + 3)), said)
    np.testing.assert_array_equal(ours, always)


def test_presence_and_frequency_count_what_was_generated():
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits()
    for token, count in {7: 2, 1: 2, 3: 1}.items():
        expected[token] -= np.float32(0.5 + 0.25 * count)
    np.testing.assert_allclose(applied(sampling, Restrictions(), SAID), expected, rtol=1e-6)
    np.testing.assert_array_equal(applied(sampling, Restrictions(), []), logits())


def test_the_logits_that_are_given_stay():
    given = logits()
    Penalties(Sampling(repetition_penalty=2), Restrictions(), ENDS, PROMPT).applied(given)
    np.testing.assert_array_equal(given, logits())


def test_nothing_is_done_where_nothing_is_asked():
    assert Penalties(Sampling(), Restrictions(), ENDS, PROMPT).is_empty


def test_counts_grow():
    tokens = np.random.default_rng(1).integers(0, 500, 2000)
    counts = TokenCounts(tokens.tolist())
    expected = np.bincount(tokens, minlength=500)
    found = np.zeros(500)
    found[counts.tokens] = counts.counts
    np.testing.assert_array_equal(found, expected)
    assert counts.tokens.size == np.count_nonzero(expected)


def test_rows_of_tokens():
    seen = SeenNgrams(3, [1, 2, 3, 1, 2, 4, 1, 2])
    assert seen.repeating == [3, 4]
    seen.add(5)
    assert seen.repeating == []
