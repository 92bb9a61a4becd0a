"""Log-probabilities are log_softmax of the model's own logits."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gptrs_runtime.generation.generate import GenerationOptions, generate, stream
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.text_stream import TokenScores


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    return exact - np.logaddexp.reduce(exact)


@pytest.mark.parametrize("count", [0, 1, 5, 49, 50, 60])
def test_the_likeliest_tokens_fall(count):
    logits = np.random.default_rng(0).normal(0, 4, 50).astype(np.float32)
    expected = _log_softmax(logits)
    scores = TokenScores.of(logits, 17, count)
    order = np.argsort(-expected, kind="stable")[:count]
    assert scores.logprob == pytest.approx(expected[17])
    assert [token for token, _ in scores.top] == order.tolist()
    np.testing.assert_allclose([value for _, value in scores.top], expected[order])


def test_equal_ones_stand_in_order_and_impossible_ones_not_at_all():
    logits = np.array([0, 1, 1, -np.inf], np.float32)
    assert [token for token, _ in TokenScores.of(logits, 1, 4).top] == [1, 2, 0]


def test_those_of_many_tokens_take_little_memory():
    scores = TokenScores.of(np.arange(300, dtype=np.float32), 3, 20)
    assert len(scores.top) == 20
    assert sys.getsizeof(scores) + sys.getsizeof(scores.packed) < 400  # a list of pairs: 3,000


def test_a_generation_has_those_of_the_model(model):
    sampling = Sampling(temperature=0.5, repetition_penalty=1.5, seed=1)
    options = GenerationOptions(6, sampling, ignore_eos=True, logprobs=2)
    pieces = stream(model, [5, 9, 2], options)
    list(pieces)
    done = pieces.generation
    text = [*done.prompt_token_ids, *done.token_ids]
    expected = [_log_softmax(row) for row in model.forward(np.array([text[:-1]]))[0, 2:]]
    assert done.logprobs is not None
    for token, scores, row in zip(done.token_ids, done.logprobs, expected, strict=True):
        assert (scores.token, len(scores.top)) == (token, 2)
        assert scores.logprob == pytest.approx(row[token], abs=1e-4)
        assert scores.top[0][1] == pytest.approx(row.max(), abs=1e-4)
    assert generate(model, [5], max_tokens=1).logprobs is None
