"""A folder with a model of the stranger's kind, and what NumPy makes of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

SETTINGS = {"vocab_size": 23, "context": 24, "width": 12, "heads": 3, "layers": 2}


def save_attention_only(folder: Path, **settings: object) -> Path:
    """Save a model with random weights; `settings` replace those of config.json."""
    folder.mkdir(parents=True)
    config = {"model_type": "attention_only", **SETTINGS, **settings}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    width, vocabulary = SETTINGS["width"], SETTINGS["vocab_size"]
    shapes = {
        "tokens.weight": (vocabulary, width),
        "places.weight": (SETTINGS["context"], width),
        "unembed.weight": (vocabulary, width),
    }
    for layer in range(SETTINGS["layers"]):
        for name in ("query", "key", "value", "out"):
            shapes[f"layers.{layer}.{name}.weight"] = (width, width)
    random = np.random.default_rng(4)
    weights = {n: random.normal(0, 0.5, s).astype(np.float32) for n, s in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def greedy_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that follow, by the definition and without a cache, in f64."""
    weights = {
        name: array.astype(np.float64)
        for name, array in load_file(folder / "model.safetensors").items()
    }
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_logits(weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _logits(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    x = weights["tokens.weight"][tokens] + weights["places.weight"][: len(tokens)]
    depth = SETTINGS["width"] // SETTINGS["heads"]
    future = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(SETTINGS["layers"]):
        query, key, value = (
            x @ weights[f"layers.{layer}.{name}.weight"].T for name in ("query", "key", "value")
        )
        found = np.empty_like(x)
        for start in range(0, SETTINGS["width"], depth):
            head = slice(start, start + depth)
            scores = query[:, head] @ key[:, head].T / np.sqrt(depth) + future
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            found[:, head] = powers / powers.sum(axis=1, keepdims=True) @ value[:, head]
        x = x + found @ weights[f"layers.{layer}.out.weight"].T
    return x @ weights["unembed.weight"].T
