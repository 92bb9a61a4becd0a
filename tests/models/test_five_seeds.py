"""Kinds of decoders agree with transformers for five draws of weights, which share kernels.

The first draw is that of the test of each kind, such as `test_llama_kinds`, which also compares
whole texts in a batch; a few of the newest, whose test writes nothing, are drawn once more here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gptrs
from models import test_text_parts
from models.llama_support import TOLERANCE, VARIANTS, VOCABULARY, assert_close, made_llama
from models.models_support import Logits, assert_greedy, torch_logits, whole_logits
from models.more_decoders import CASES as NEWER
from models.more_decoders import COMPILED_CASES as COMPILED_NEWER
from models.test_llama_kinds import CASES, COMPILED_CASES, RENAMED, save_renamed
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
OF_LARGE_ERRORS = {"qwen3_5_moe_text", "qwen3_5_moe", "qwen3_next"}
"""Cases whose errors of rounding grow: torch itself is up to 2.2e-4 away from what f64 has.

Logits that differ by more than others may be twice as far from that as torch is.
"""
WHOLE = {*OF_LARGE_ERRORS, "qwen3_5"}
"""Cases whose errors grow otherwise one token at a time: whole texts are compared instead."""


@pytest.mark.exhaustive
@pytest.mark.whole
@pytest.mark.parametrize("name", KINDS)
def test_logits_and_greedy_tokens(tmp_path, backend_name, name):
    if backend_name != "ref" and name not in COMPILED:
        pytest.skip("kernels of the others are among those of the cases that are compiled")
    kind, settings = KINDS[name]
    for seed in (*SEEDS, SEEDS.stop) if name in NEWER and " " in name else SEEDS:
        folder = tmp_path / str(seed)
        theirs = made_llama(folder, kind, **settings, seed=seed)
        made = partial(exact_logits, "AutoModelForCausalLM", folder)
        agrees(folder, partial(whole_logits, theirs), name, seed, made, backend_name)


@pytest.mark.exhaustive
@pytest.mark.whole
@pytest.mark.parametrize("name", RENAMED)
def test_kinds_that_transformers_lacks(tmp_path, name):
    for seed in SEEDS:
        ours, theirs = save_renamed(tmp_path / str(seed), name, seed)
        made = partial(exact_logits, "AutoModelForCausalLM", theirs)
        agrees(ours, partial(torch_logits, theirs), name, seed, made)


@pytest.mark.exhaustive
@pytest.mark.whole
@pytest.mark.parametrize("name", test_text_parts.CASES)
def test_language_models_beside_other_parts(tmp_path, name):
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        theirs = test_text_parts.save(folder, name, seed)
        made = partial(exact_logits, type(theirs).__name__, folder)
        agrees(folder, partial(whole_logits, theirs), name, seed, made)


def agrees(
    folder: Path, theirs: Logits, name: str, seed: int, exact: Logits, backend: str = "ref"
) -> None:
    """Compare a greedy text, and the logits that each of its tokens was chosen from.

    The reference backend, which compiles nothing, also reads that text at once.
    """
    model = gptrs.load_model(folder, backend=backend)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (2, 40))
    prompt = tokens[0, :9].tolist()
    ours: list[np.ndarray] = []

    def keep(_: np.ndarray, logits: np.ndarray) -> np.ndarray:
        ours.append(logits.copy())
        return logits

    options = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True}
    found = list(gptrs.generate(model, prompt, **options, logits_processors=[keep]).token_ids)
    wanted = assert_greedy(theirs, prompt, found, COUNT)
    if name in WHOLE:
        made = partial(exact, tokens) if name in OF_LARGE_ERRORS else None
        assert_close_or_exact(model.forward(tokens), theirs(tokens), made)
        return
    assert_close(np.stack(ours), wanted)
    if backend == "ref":
        text = np.array([[*prompt, *found[:-1]]])
        assert_close(model.forward(text)[0, len(prompt) - 1 :], wanted)


def assert_close_or_exact(
    ours: np.ndarray, theirs: np.ndarray, exact: Callable[[], np.ndarray] | None
) -> None:
    """Equal to within the tolerance, else at most twice as far from the `exact` logits as torch."""
    if exact is None or np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max():
        assert_close(ours, theirs)
        return
    wanted = exact()
    assert ours.shape == wanted.shape
    assert np.abs(ours - wanted).max() <= 2 * np.abs(theirs - wanted).max()


def exact_logits(made: str, folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Return what a class computes at f64; transformers' kernels of experts have no such type."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    loaded = getattr(transformers, made).from_pretrained
    model = loaded(folder, dtype=torch.float64, experts_implementation="eager").eval()
    return whole_logits(model, tokens)
