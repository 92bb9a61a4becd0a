"""Kinds of decoders agree with transformers for five draws of weights, which share kernels.

The first draw is that of the test of each kind, such as `test_llama_kinds`, but for the newest
kinds, whose test writes less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from models import test_text_parts
from models.llama_support import TOLERANCE, VARIANTS, VOCABULARY, assert_close, save_llama
from models.models_support import torch_logits
from models.more_decoders import CASES as NEWER
from models.more_decoders import COMPILED_CASES as COMPILED_NEWER
from models.test_llama_kinds import CASES, COMPILED_CASES, RENAMED, save_renamed
from models.test_recurrent_kinds import KINDS as RECURRENT

Logits = Callable[[np.ndarray], np.ndarray]
"""Tokens si64 [B, T] -> logits f32 [B, T, V]."""
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
OF_LARGE_ERRORS = {"qwen3_5_moe_text", "qwen3_5_moe"}
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
        made = partial(exact_logits, "AutoModelForCausalLM", folder, tokens)
        assert_close_or_exact(ours, theirs, made if name in OF_LARGE_ERRORS else None)
        prompt = tokens[0, :9].tolist()
        greedy = gptrs.Sampling(temperature=0)
        found = gptrs.generate(model, prompt, max_tokens=COUNT, sampling=greedy, ignore_eos=True)
        assert_greedy(partial(torch_logits, folder), prompt, list(found.token_ids))


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("name", RENAMED)
def test_kinds_that_transformers_lacks(tmp_path, name):
    for seed in SEEDS:
        ours, theirs = save_renamed(tmp_path / str(seed), name, seed)
        agrees(ours, partial(torch_logits, theirs), seed)


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("name", test_text_parts.CASES)
def test_language_models_beside_other_parts(tmp_path, name):
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        theirs = test_text_parts.save(folder, name, seed)
        made = partial(exact_logits, type(theirs).__name__, folder)
        exact = made if name in OF_LARGE_ERRORS else None
        agrees(folder, partial(whole_logits, theirs), seed, exact)


def whole_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits that a model of transformers computes of texts alone."""
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(tokens)
    with torch.no_grad():
        return model(input_ids=given, attention_mask=torch.ones_like(given)).logits.numpy()


def agrees(folder: Path, theirs: Logits, seed: int, exact: Logits | None = None) -> None:
    """Compare logits and a greedy text on the reference backend."""
    model = gptrs.load_model(folder, backend="ref")
    tokens = np.random.default_rng(seed).integers(0, 90, (2, 40))
    made = None if exact is None else partial(exact, tokens)
    assert_close_or_exact(model.forward(tokens), theirs(tokens), made)
    prompt, greedy = tokens[0, :9].tolist(), gptrs.Sampling(temperature=0)
    found = gptrs.generate(model, prompt, max_tokens=COUNT, sampling=greedy, ignore_eos=True)
    assert_greedy(theirs, prompt, list(found.token_ids))


def assert_close_or_exact(
    ours: np.ndarray, theirs: np.ndarray, exact: Callable[[], np.ndarray] | None
) -> None:
    """Equal to within the tolerance, else at most twice as far from the `exact` logits as torch."""
    if exact is None or np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max():
        assert_close(ours, theirs)
    else:
        wanted = exact()
        assert np.abs(ours - wanted).max() <= 2 * np.abs(theirs - wanted).max()


def exact_logits(made: str, folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Return what a class computes at f64; transformers' kernels of experts have no such type."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    loaded = getattr(transformers, made).from_pretrained
    model = loaded(folder, dtype=torch.float64, experts_implementation="eager").eval()
    return whole_logits(model, tokens)


def assert_greedy(logits: Logits, prompt: list[int], written: list[int]) -> None:
    """Each token is the one that transformers scores highest after the prompt and those before."""
    assert len(written) == COUNT
    text = np.array([[*prompt, *written[:-1]]])
    scores = logits(text)[0, len(prompt) - 1 :]
    gaps = scores.max(-1) - scores[np.arange(COUNT), written]
    assert (gaps <= TIE * np.abs(scores).max(-1)).all(), gaps
