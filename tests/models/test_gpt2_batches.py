"""Texts of unequal length in one step give what each gives alone, and what transformers gives."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.nn import PagedTexts
from models.models_support import torch_batch_tokens, torch_hidden_states, torch_logits

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

LENGTHS = (5, 12, 1, 9)
TOLERANCE = 1e-5
"""Largest difference of a logit, relative to the largest logit."""


def _prompts() -> list[list[int]]:
    return [np.random.default_rng(length).integers(0, 97, length).tolist() for length in LENGTHS]


def _assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


def _greedy(texts: PagedTexts, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` tokens for each row, and the logits before each of them."""
    tokens, seen = [], [logits]
    for _ in range(count):
        tokens.append(seen[-1].argmax(-1)[:, None])
        seen.append(texts.append(tokens[-1]))
    return np.concatenate(tokens, axis=1), np.stack(seen, axis=1)


@pytest.fixture(scope="module")
def lm(tiny_gpt2_directory, backend_name):
    return gptrs.load_model(tiny_gpt2_directory, backend=backend_name).causal_lm()


def test_logits_of_unequal_texts(lm, tiny_gpt2_directory):
    prompts = _prompts()
    together = PagedTexts(lm, len(prompts), 12).append(prompts)
    for row, prompt in enumerate(prompts):
        tokens = np.array([prompt])
        _assert_close(together[row], lm.forward(tokens)[0, -1])
        _assert_close(together[row], torch_logits(tiny_gpt2_directory, tokens)[0, -1], 1e-4)


def test_generating_together(lm, tiny_gpt2_directory):
    prompts = _prompts()
    texts = PagedTexts(lm, len(prompts), 80)
    chosen, logits = _greedy(texts, texts.append(prompts), 64)
    for row, prompt in enumerate(prompts):
        alone = PagedTexts(lm, 1, 80)
        expected, expected_logits = _greedy(alone, alone.append([prompt]), 64)
        np.testing.assert_array_equal(chosen[row], expected[0])
        _assert_close(logits[row], expected_logits[0])
    np.testing.assert_array_equal(chosen, torch_batch_tokens(tiny_gpt2_directory, prompts, 64))


def test_chunks_of_prompts_and_decoded_tokens_share_steps(lm):
    """Each step takes what a text has next: 4 tokens of a prompt, or one that was chosen."""
    prompts = _prompts()
    texts = PagedTexts(lm, len(prompts), 40)
    rows, wholes = [prompt[:4] for prompt in prompts], [list(prompt) for prompt in prompts]
    seen: list[tuple[int, int, np.ndarray]] = []
    for _ in range(12):
        logits = texts.append(rows)
        for row, whole in enumerate(wholes):
            done = texts.lengths[row]
            seen.append((row, done - 1, logits[row]))
            if done == len(whole):
                whole.append(int(logits[row].argmax()))
            rows[row] = whole[done : done + 4]
    assert texts.lengths == [15, 21, 12, 18]
    expected = [lm.forward(np.array([whole]))[0] for whole in wholes]
    for row, position, found in seen:
        _assert_close(found, expected[row][position])


def test_hidden_states_are_those_of_transformers(lm, tiny_gpt2_directory):
    tokens = np.random.default_rng(1).integers(0, 97, (2, 7))
    ours = lm.hidden_states(tokens)
    assert list(ours) == ["embeddings", "layer.0", "layer.1"]
    for name, theirs in zip(ours, torch_hidden_states(tiny_gpt2_directory, tokens), strict=True):
        _assert_close(ours[name], theirs, 1e-4)
