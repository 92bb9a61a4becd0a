"""Greedy texts are those of transformers' `generate`, token for token, whatever its settings."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import gptrs

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

PROMPTS = [[5, 9, 2, 9, 5], [7], np.random.default_rng(3).integers(1, 97, 23).tolist()]
COUNT = 48

SETTINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.3},
    "reward": {"repetition_penalty": 0.8},
    "ngrams": {"no_repeat_ngram_size": 2},
    "suppressed": {"suppress_tokens": [3, 17, 60], "begin_suppress_tokens": list(range(20, 60))},
    "late_end": {"eos_token_id": list(range(0, 97, 5)), "min_new_tokens": 9},
    "length": {"max_length": 40},
    "all": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [4],
        "eos_token_id": [11, 12, 13],
        "min_new_tokens": 30,
    },
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A GPT-2 with random weights, large enough that greedy choices have clear gaps."""
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=160, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    )
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("generation") / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@lru_cache(maxsize=1)
def their_model(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def configured(weights: Path, folder: Path, settings: dict[str, object]) -> Path:
    """The model with other settings in its generation_config.json."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((weights / name).read_bytes())
    text = json.dumps({"eos_token_id": 96, **settings})
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return folder


def theirs(weights: Path, prompt: list[int], settings: dict[str, object]) -> list[int]:
    config = transformers.GenerationConfig(
        **{"eos_token_id": 96, "pad_token_id": 0, "do_sample": False, **settings}
    )
    if "max_length" not in settings:
        config.max_new_tokens = COUNT
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        output = their_model(weights).generate(
            tokens, attention_mask=torch.ones_like(tokens), generation_config=config
        )
    return output[0, len(prompt) :].tolist()


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_texts(weights, tmp_path, backend, name):
    settings = SETTINGS[name]
    model = gptrs.load_model(configured(weights, tmp_path / name, settings), backend.name)
    count = None if "max_length" in settings else COUNT
    # Settings are obeyed by the same code on each backend, and the reference is slow.
    prompts = PROMPTS[:2] if backend.name == "ref" else PROMPTS
    expected = [theirs(weights, prompt, settings) for prompt in prompts]
    options = gptrs.GenerationOptions(max_tokens=count)
    together = gptrs.generate_batch(model, prompts, options)
    for prompt, batched, tokens in zip(prompts, together, expected, strict=True):
        alone = gptrs.generate(model, prompt, max_tokens=count)
        assert list(alone.token_ids) == tokens
        assert list(batched.token_ids) == tokens
