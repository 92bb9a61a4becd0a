"""Unequal texts of Llama and its relatives are as if alone, prompts in chunks as if whole."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.nn import PagedTexts
from models.llama_support import assert_close, logits_of, save_variant, some_tokens

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

NAMES = ["plain", "ministral", "ministral3_scaled", "qwen3_switches"]
LENGTHS = (33, 9, 20, 1)


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    return save_variant(tmp_path_factory.mktemp("llama") / request.param, request.param)


@pytest.fixture
def lm(folder, backend_name):
    return gptrs.load_model(folder, backend=backend_name).causal_lm()


def _prompts() -> list[np.ndarray]:
    tokens = some_tokens(len(LENGTHS), max(LENGTHS))
    return [row[:length] for row, length in zip(tokens, LENGTHS, strict=True)]


def test_unequal_texts_are_those_of_transformers(folder, lm):
    prompts = _prompts()
    together = PagedTexts(lm, len(prompts), max(LENGTHS)).append(prompts)
    for row, prompt in enumerate(prompts):
        assert_close(together[row], logits_of(folder, prompt[None])[0, -1])


def test_prompts_in_chunks_among_decoded_tokens(lm):
    """In each step a text has 5 tokens or 1; all of them run past every window."""
    texts = PagedTexts(lm, 4, 64)
    wholes = some_tokens(4, 64)
    forward = lm.forward(wholes)
    for step in range(12):
        starts = list(texts.lengths)
        counts = [5 if (step + row) % 3 else 1 for row in range(4)]
        rows = zip(wholes, starts, counts, strict=True)
        logits = texts.append([whole[start : start + count] for whole, start, count in rows])
        ends = [length - 1 for length in texts.lengths]
        assert_close(logits, forward[np.arange(4), ends])
    assert min(texts.lengths) > 40


@pytest.mark.parametrize("chunk", [7, 64, 200])
def test_chunked_prefill_equals_whole(lm, chunk):
    tokens = some_tokens(2, 130)
    texts = PagedTexts(lm, 2, 130)
    steps = [texts.append(tokens[:, at : at + chunk]) for at in range(0, 130, chunk)]
    assert texts.lengths == [130, 130]
    assert_close(steps[-1], lm.forward(tokens)[:, -1])
