"""Random-weight directories of Llama and its relatives, and what transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tiny_models import tiny

TOLERANCE = 1e-4
"""Largest error of a logit, relative to the largest logit."""

VOCABULARY = 97

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
MINISTRAL3 = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [1.0, 2.5, 4.0, 7.0],
    "short_factor": [1.0, 1.1, 1.2, 1.5],
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("Llama", {}),
    "llama3_rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5}},
    ),
    "dynamic": ("Llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "yarn_settings": (
        "Llama",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "attention_factor": 1.25,
                "truncate": False,
            }
        },
    ),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "body_only": ("Llama", {"tie_word_embeddings": True, "saved_as": "LlamaModel"}),
    "head_dim": ("Llama", {"head_dim": 14, "num_key_value_heads": 1}),
    "all_heads": ("Llama", {"num_key_value_heads": 4, "vocab_size": 101}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "pretraining_tp": ("Llama", {"pretraining_tp": 2, "rms_norm_eps": 1e-2}),
    "half": ("Llama", {"saved_dtype": "float16"}),
    "brain": ("Llama", {"saved_dtype": "bfloat16"}),
    "sharded": ("Llama", {"max_shard_size": "20KB"}),
    "mistral": ("Mistral", {"sliding_window": 12}),
    "mistral_full": ("Mistral", {"sliding_window": None, "head_dim": 10}),
    "ministral": (
        "Ministral",
        {
            "sliding_window": 12,
            "head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "ministral3": ("Ministral3", {"head_dim": 16}),
    "ministral3_scaled": (
        "Ministral3",
        {"head_dim": 16, "rope_parameters": MINISTRAL3, "sliding_window": 40},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3_switches": (
        "Qwen3",
        {
            "head_dim": 6,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
}
"""The kind of each directory in transformers, and its settings."""


def save_variant(folder: Path, name: str) -> Path:
    """Save the variant called `name`."""
    kind, settings = VARIANTS[name]
    return save_llama(folder, kind, **settings)


def save_llama(folder: Path, kind: str = "Llama", **settings: object) -> Path:
    """Save a model with random weights, large enough that greedy choices have clear gaps."""
    made_llama(folder, kind, **settings)
    return folder


def made_llama(folder: Path, kind: str = "Llama", **settings: object) -> Any:
    """`save_llama`, which returns the model of transformers: reading it again takes as long."""
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    saved_as = str(settings.pop("saved_as", f"{kind}ForCausalLM"))
    dtype = str(settings.pop("saved_dtype", "float32"))
    shard = str(settings.pop("max_shard_size", "5GB"))
    seed = int(str(settings.pop("seed", 7)))
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 160,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    made = getattr(transformers, f"{kind}Config")
    if hasattr(made, "attribute_map"):  # GPT-J has other names: a setting is given once
        own = {name for name in made.attribute_map if made.attribute_map[name] in settings}
        defaults = {name: value for name, value in defaults.items() if name not in own}
    config = made(**{**defaults, **settings})
    return tiny(folder, saved_as, config, seed=seed, dtype=dtype, max_shard_size=shard)


def edit_config(folder: Path, **settings: object) -> None:
    """Set settings of config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def fresh_model(folder: Path) -> Any:
    """The model of transformers at f32; with dynamic scaling it remembers what it has read."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] that a fresh model computes at f32."""
    import torch

    with torch.no_grad():
        return fresh_model(folder)(torch.from_numpy(tokens)).logits.numpy()


def greedy_of(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that a fresh model appends greedily, never stopping early."""
    import torch

    with torch.no_grad():
        output = fresh_model(folder).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal to within `TOLERANCE` of the largest value."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


def some_tokens(batch: int, length: int) -> np.ndarray:
    """Tokens si64 [B, T] that every variant knows."""
    return np.random.default_rng(length).integers(0, VOCABULARY, (batch, length))
