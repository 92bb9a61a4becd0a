"""Texts of unequal length in one batch give what each gives alone, and what transformers gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gptrs
from gptrs.errors import UsageError
from models.models_support import torch_batch_logits, torch_batch_tokens, torch_hidden_states

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

LENGTHS = (5, 12, 1, 9)
TOLERANCE = 1e-5
"""Largest difference of a logit, relative to the largest logit."""


def _prompts() -> list[list[int]]:
    return [np.random.default_rng(length).integers(0, 97, length).tolist() for length in LENGTHS]


def _padded(prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Left-padded with a token that is far from neutral, and how much."""
    longest = max(map(len, prompts))
    left_padding = np.array([longest - len(prompt) for prompt in prompts])
    rows = [[96] * (longest - len(prompt)) + prompt for prompt in prompts]
    return np.array(rows), left_padding


def _assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


def _greedy(lm, logits: np.ndarray, cache, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` tokens for each row, and the logits before each of them."""
    tokens, seen = [], [logits]
    for _ in range(count):
        tokens.append(seen[-1].argmax(-1)[:, None])
        seen.append(lm.step(tokens[-1], cache))
    return np.concatenate(tokens, axis=1), np.stack(seen, axis=1)


@pytest.fixture(scope="module")
def lm(tiny_gpt2_directory, backend_name):
    return gptrs.load_model(tiny_gpt2_directory, backend=backend_name).causal_lm()


def test_logits_of_a_batch(lm, tiny_gpt2_directory):
    prompts = _prompts()
    tokens, left_padding = _padded(prompts)
    together = lm.forward(tokens, left_padding)
    assert np.isfinite(together).all()
    theirs = torch_batch_logits(tiny_gpt2_directory, tokens, left_padding)
    for row, prompt in enumerate(prompts):
        own = together[row, left_padding[row] :]
        _assert_close(own, lm.forward(np.array([prompt]))[0])
        _assert_close(own, theirs[row, left_padding[row] :], 1e-4)


def test_generating_in_a_batch(lm, tiny_gpt2_directory):
    prompts = _prompts()
    tokens, left_padding = _padded(prompts)
    cache = lm.new_cache(len(prompts), left_padding)
    chosen, logits = _greedy(lm, lm.step(tokens, cache), cache, 64)
    for row, prompt in enumerate(prompts):
        alone = lm.new_cache(1)
        first = lm.step(np.array([prompt]), alone)
        expected, expected_logits = _greedy(lm, first, alone, 64)
        np.testing.assert_array_equal(chosen[row], expected[0])
        _assert_close(logits[row], expected_logits[0])
    np.testing.assert_array_equal(
        chosen, torch_batch_tokens(tiny_gpt2_directory, tokens, left_padding, 64)
    )


def test_a_padded_batch_may_be_cut_anywhere(lm):
    tokens, left_padding = _padded(_prompts())
    expected = lm.forward(tokens, left_padding)[:, -1]
    for sizes in ([3, 9], [7, 4, 1]):
        cache, ends = lm.new_cache(len(tokens), left_padding), itertools.accumulate(sizes)
        pieces = [tokens[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]
        steps = [lm.step(piece, cache) for piece in pieces]
        _assert_close(steps[-1], expected)


def test_padding_has_no_influence(lm):
    tokens, left_padding = _padded(_prompts())
    other = tokens.copy()
    for row, start in enumerate(left_padding):
        other[row, :start] = np.arange(start) + 3
    ours, theirs = (lm.forward(given, left_padding) for given in (tokens, other))
    for row, start in enumerate(left_padding):
        np.testing.assert_array_equal(ours[row, start:], theirs[row, start:])


def test_one_prompt_for_several_texts(lm):
    prompt = np.array([_prompts()[0]])
    cache = lm.new_cache(1)
    lm.step(prompt, cache)
    several = cache.repeated(3)
    branches = np.array([[4], [9], [44]])
    logits = lm.step(branches, several)
    for row, token in enumerate(branches):
        whole = lm.forward(np.concatenate([prompt, token[None]], axis=1))
        _assert_close(logits[row], whole[0, -1])
    # The one that was copied goes on by itself, and rows may be dropped.
    _assert_close(lm.step(branches[1:2], cache), logits[1:2])
    kept = several.rows([2])
    expected = lm.forward(np.concatenate([prompt, branches[2:], [[7]]], axis=1))[:, -1]
    _assert_close(lm.step(np.array([[7]]), kept), expected)


def test_a_batch_of_another_size_is_refused(lm):
    with pytest.raises(UsageError, match=r"a step takes tokens \[2, T\]"):
        lm.step(np.zeros((3, 1), np.int64), lm.new_cache(2))
    with pytest.raises(UsageError, match=r"`left_padding` needs integers \[2\]"):
        lm.new_cache(2, np.array([0, 1, 2]))


def test_hidden_states_are_those_of_transformers(lm, tiny_gpt2_directory):
    tokens = np.random.default_rng(1).integers(0, 97, (2, 7))
    ours = lm.hidden_states(tokens)
    assert list(ours) == ["embeddings", "layer.0", "layer.1"]
    for name, theirs in zip(ours, torch_hidden_states(tiny_gpt2_directory, tokens), strict=True):
        _assert_close(ours[name], theirs, 1e-4)
