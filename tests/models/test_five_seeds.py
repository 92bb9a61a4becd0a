"""Kinds of decoders agree with transformers for five draws of weights, which share kernels.

The first draw is that of the test of each kind, such as `test_llama_kinds`, but for the newest
kinds, whose test writes less.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from models.llama_support import TOLERANCE, VARIANTS, VOCABULARY, assert_close, save_llama
from models.models_support import torch_logits
from models.more_decoders import CASES as NEWER
from models.more_decoders import COMPILED_CASES as COMPILED_NEWER
from models.test_llama_kinds import CASES, COMPILED_CASES
from models.test_recurrent_kinds import KINDS as RECURRENT

SEEDS = range(11, 15)
COUNT = 48
GPT2: dict[str, tuple[str, dict[str, object]]] = {
    "gpt2": ("GPT2", {"saved_as": "GPT2LMHeadModel", "n_inner": 44}),
    "gpt2 of scaled layers": (
        "GPT2",
        {
            **{"saved_as": "GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx": True},
            **{"tie_word_embeddings": False, "activation_function": "relu"},
        },
    ),
}
OLDEST = {
    name: VARIANTS[name]
    for name in (
        *("llama3_rope", "yarn_settings", "head_dim", "biases", "mistral", "ministral"),
        *("ministral3_scaled", "qwen2_window", "qwen3_switches"),
    )
}
"""Settings of the kinds that `test_llama` compares."""
KINDS = {**GPT2, **OLDEST, **CASES, **NEWER, **RECURRENT}
COMPILED = {*GPT2, "ministral", "qwen3_switches", *COMPILED_CASES, *COMPILED_NEWER, *RECURRENT}
OF_LARGE_ERRORS = {"qwen3_5_moe_text"}
"""Cases whose errors of rounding grow: of seed 11 torch itself is 2.2e-4 away from what f64 has.

Logits that differ by more than others may be twice as far from that as torch is.
"""
TIE = 1e-5
"""Gap of two logits, relative to the largest, below which either may be chosen."""


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("name", KINDS)
def test_logits_and_greedy_tokens(tmp_path, backend_name, name):
    if backend_name != "ref" and name not in COMPILED:
        pytest.skip("kernels of the others are among those of the cases that are compiled")
    kind, settings = KINDS[name]
    for seed in (*SEEDS, SEEDS.stop) if name in NEWER else SEEDS:
        folder = save_llama(tmp_path / str(seed), kind, **settings, seed=seed)
        model = gptrs.load_model(folder, backend=backend_name)
        # Of the sizes of `test_llama_kinds`, whose kernels a backend that compiles finds on disk.
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (2, 40))
        ours, theirs = model.forward(tokens), torch_logits(folder, tokens)
        apart = np.abs(ours - theirs).max() > TOLERANCE * np.abs(theirs).max()
        if apart and name in OF_LARGE_ERRORS:
            wanted = exact_logits(folder, tokens)
            assert np.abs(ours - wanted).max() <= 2 * np.abs(theirs - wanted).max()
        else:
            assert_close(ours, theirs)
        prompt = tokens[0, :9].tolist()
        greedy = gptrs.Sampling(temperature=0)
        found = gptrs.generate(model, prompt, max_tokens=COUNT, sampling=greedy, ignore_eos=True)
        assert_greedy(folder, prompt, list(found.token_ids))


def exact_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Return what transformers computes at f64; its kernels of experts have no such type."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoModelForCausalLM.from_pretrained
    model = made(folder, dtype=torch.float64, experts_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def assert_greedy(folder: Path, prompt: list[int], written: list[int]) -> None:
    """Each token is the one that transformers scores highest after the prompt and those before."""
    assert len(written) == COUNT
    text = np.array([[*prompt, *written[:-1]]])
    scores = torch_logits(folder, text)[0, len(prompt) - 1 :]
    gaps = scores.max(-1) - scores[np.arange(COUNT), written]
    assert (gaps <= TIE * np.abs(scores).max(-1)).all(), gaps
