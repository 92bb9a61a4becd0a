"""What the tests of models ask of transformers: directories, logits and greedy tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from support.tiny_models import tiny

Logits = Callable[[np.ndarray], np.ndarray]
"""Tokens si64 [B, T] -> logits f32 [B, T, V]."""
TIE = 1e-5
"""Gap of two logits, relative to the largest, below which either may be chosen."""


def save_gpt2(folder: Path, **settings: object) -> Path:
    """Save a GPT-2 with random weights, large enough that greedy choices have clear gaps."""
    made = str(settings.pop("saved_as", "GPT2LMHeadModel"))
    dtype = str(settings.pop("saved_dtype", "float32"))
    shard = str(settings.pop("max_shard_size", "5GB"))
    sizes = {"vocab_size": 97, "n_positions": 160, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = {"initializer_range": 0.3, **sizes, **settings}
    tiny(folder, made, config, seed=7, dtype=dtype, max_shard_size=shard)
    return folder


@lru_cache(maxsize=4)
def _load(folder: Path) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def torch_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] that transformers computes at f32."""
    import torch

    with torch.no_grad():
        return _load(folder)(torch.from_numpy(tokens)).logits.numpy()


def whole_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits that a model of transformers computes of texts alone."""
    import torch

    given = torch.from_numpy(tokens)
    with torch.no_grad():
        return model(input_ids=given, attention_mask=torch.ones_like(given)).logits.numpy()


def assert_greedy(
    logits: Logits, prompt: Sequence[int], written: Sequence[int], count: int
) -> np.ndarray:
    """Each of `count` tokens is the one that `logits` are highest for after those before.

    One forward pass tells, where generating takes one for each token. Return its logits [T, V].
    """
    assert len(written) == count
    text = np.array([[*prompt, *written[:-1]]])
    scores = logits(text)[0, len(prompt) - 1 :]
    gaps = scores.max(-1) - scores[np.arange(count), list(written)]
    assert (gaps <= TIE * np.abs(scores).max(-1)).all(), gaps
    return scores


def greedy_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that transformers appends greedily, never stopping early."""
    import torch

    model = _load(folder)
    with torch.no_grad():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


def torch_hidden_states(folder: Path, tokens: np.ndarray) -> list[np.ndarray]:
    """The states that transformers shows, in order, each [B, T, C]."""
    import torch

    with torch.no_grad():
        output = _load(folder)(torch.from_numpy(tokens), output_hidden_states=True)
    return [state.numpy() for state in output.hidden_states]


def torch_batch_tokens(folder: Path, prompts: list[list[int]], count: int) -> np.ndarray:
    """The `count` tokens that transformers appends greedily to each prompt of a batch, [B, count].

    It wants prompts of one length: the shorter ones are padded before they begin.
    """
    import torch

    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    with torch.no_grad():
        output = _load(folder).generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[:, longest:].numpy()
