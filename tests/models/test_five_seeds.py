"""Kinds of decoders agree with transformers for five draws of weights, which share kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from models.llama_support import VOCABULARY, assert_close, save_llama
from models.models_support import greedy_tokens, torch_logits
from models.test_llama_kinds import CASES, COMPILED_CASES
from models.test_recurrent_kinds import KINDS as RECURRENT

SEEDS = range(11, 16)
COUNT = 24
KINDS = {**CASES, **RECURRENT}
TIE = 1e-5
"""Gap of two logits, relative to the largest, below which either may be chosen."""


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("name", KINDS)
def test_logits_and_greedy_tokens(tmp_path, backend_name, name):
    compiled = name in RECURRENT or name in COMPILED_CASES
    if compiled is (backend_name == "ref"):
        pytest.skip("each case runs on one backend: every second one is compiled")
    kind, settings = KINDS[name]
    for seed in SEEDS:
        folder = save_llama(tmp_path / str(seed), kind, **settings, seed=seed)
        model = gptrs.load_model(folder, backend=backend_name)
        # Of the sizes of `test_llama_kinds`, whose kernels a backend that compiles finds on disk.
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (2, 40))
        assert_close(model.forward(tokens), torch_logits(folder, tokens))
        prompt = tokens[0, :9].tolist()
        greedy = gptrs.Sampling(temperature=0)
        ours = gptrs.generate(model, prompt, max_tokens=COUNT, sampling=greedy, ignore_eos=True)
        assert_same(folder, prompt, list(ours.token_ids))


def assert_same(folder: Path, prompt: list[int], ours: list[int]) -> None:
    """The tokens are those of transformers, up to the first one that is as good as another."""
    theirs = greedy_tokens(folder, prompt, COUNT)
    assert len(ours) == COUNT
    if ours == theirs:
        return
    first = next(i for i in range(COUNT) if ours[i] != theirs[i])
    scores = torch_logits(folder, np.array([[*prompt, *theirs[:first]]]))[0, -1]
    gap = float(scores[theirs[first]] - scores[ours[first]])
    assert gap <= TIE * float(np.abs(scores).max()), f"token {first}: {gap} apart"
