"""Perplexity: what is scored, after what, and that it is the logits of `forward`."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import UsageError
from gptrs_runtime.perplexity import measure_perplexity
from runtime.tiny_gpt2 import save_tiny_gpt2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gptrs.load_model(save_tiny_gpt2(tmp_path_factory.mktemp("p") / "tiny"), "ref")


def costs_of(model, tokens):
    """-log p of all tokens but the first, each after those before it."""
    logits = model.forward(np.array([tokens]))[0, :-1].astype(np.float64)
    logsumexp = np.log(np.exp(logits).sum(axis=1))
    return logsumexp - logits[np.arange(len(tokens) - 1), tokens[1:]]


def test_one_window_is_one_run(model):
    tokens = list(range(1, 13))
    found = measure_perplexity(model, tokens)
    costs = costs_of(model, tokens)
    assert found.nll == pytest.approx(costs.mean(), abs=1e-6)
    assert found.error == pytest.approx(costs.std(ddof=1) / np.sqrt(11), abs=1e-6)
    assert (found.scored, found.windows, found.window, found.stride) == (11, 1, 64, 32)
    assert found.perplexity == pytest.approx(np.exp(costs.mean()))


def test_windows_score_each_token_once(model):
    tokens = [5, 3, 9, 1, 7, 7, 2, 8, 4, 6, 11]
    told: list[tuple[int, int]] = []
    found = measure_perplexity(model, tokens, 6, 2, lambda *step: told.append(step))
    first = costs_of(model, tokens[:6])
    second = costs_of(model, tokens[2:8])[-2:]
    third = costs_of(model, tokens[4:10])[-2:]
    last = costs_of(model, tokens[5:11])[-1:]  # as long as the others, and ends with the text
    expected = np.concatenate([first, second, third, last])
    assert found.scored == expected.size == 10
    assert found.nll == pytest.approx(expected.mean(), abs=1e-6)
    assert told == [(number, 4) for number in range(5)]


@pytest.mark.parametrize(
    ("tokens", "window", "stride", "text"),
    [
        ([1], None, None, "at least 2 tokens"),
        ([1, 2], 1, None, "2 to 64"),
        ([1, 2], 8, 8, "1 to 7"),
        ([1, 2], 8, 0, "1 to 7"),
        ([1, 9999], None, None, "token 9999 is not in the vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused(model, tokens, window, stride, text):
    with pytest.raises(UsageError, match=text):
        measure_perplexity(model, tokens, window, stride)
