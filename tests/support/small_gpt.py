"""A GPT-2 of two layers, and the same in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import gptrs
from gptrs import functionals as F

if TYPE_CHECKING:
    import torch

Params = dict[str, "gptrs.Tensor"]
LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 2, 32, 2, 50, 2, 8


def gpt_params() -> dict[str, np.ndarray]:
    """Return weights by name."""
    random = np.random.default_rng(0)

    def normal(*shape: int, mean: float = 0) -> np.ndarray:
        return (mean + 0.1 * random.standard_normal(shape)).astype(np.float32)

    params = {"tokens": normal(VOCABULARY, WIDTH), "places": normal(LENGTH, WIDTH)}
    for name in [f"{layer}.{norm}" for layer in range(LAYERS) for norm in ("n1", "n2")] + ["n"]:
        params |= {f"{name}.w": normal(WIDTH, mean=1), f"{name}.b": normal(WIDTH)}
    for layer in range(LAYERS):
        for name, rows, columns in (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1)):
            params[f"{layer}.{name}.w"] = normal(rows * WIDTH, columns * WIDTH)
            params[f"{layer}.{name}.b"] = normal(columns * WIDTH)
    return params


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and the next ones; each follows from the one before, so that one can learn."""
    random = np.random.default_rng(number)
    first = random.integers(0, VOCABULARY, (BATCH, 1))
    tokens = (first + 3 * np.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def gpt_loss(p: Params, tokens: gptrs.Tensor, targets: gptrs.Tensor) -> gptrs.Tensor:
    """Return the mean cross-entropy of the next tokens."""

    def norm(name: str, h: gptrs.Tensor) -> gptrs.Tensor:
        return F.layer_norm(h, p[f"{name}.w"], p[f"{name}.b"])

    def linear(name: str, h: gptrs.Tensor) -> gptrs.Tensor:
        return h @ p[f"{name}.w"] + p[f"{name}.b"]

    h = F.embedding(tokens, p["tokens"]) + p["places"]  # (B, T, C)
    for layer in range(LAYERS):
        x = linear(f"{layer}.qkv", norm(f"{layer}.n1", h))
        x = F.reshape(x, (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS))
        x = F.transpose(x, (2, 0, 3, 1, 4))  # (3, B, H, T, D)
        x = F.attention(x[0], x[1], x[2], causal=True)
        h = h + linear(f"{layer}.out", F.reshape(F.transpose(x, (0, 2, 1, 3)), h.shape))
        x = F.gelu(linear(f"{layer}.up", norm(f"{layer}.n2", h)), approximate="tanh")
        h = h + linear(f"{layer}.down", x)
    logits = F.linear(norm("n", h), p["tokens"])
    chosen = F.gather(F.log_softmax(logits), F.reshape(targets, (*targets.shape, 1)), 2)
    return F.mean(chosen) * -1.0


def torch_gpt_loss(
    p: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the same in torch."""
    from torch.nn import functional as TF

    def norm(name: str, h: torch.Tensor) -> torch.Tensor:
        return TF.layer_norm(h, (WIDTH,), p[f"{name}.w"], p[f"{name}.b"])

    def linear(name: str, h: torch.Tensor) -> torch.Tensor:
        return h @ p[f"{name}.w"] + p[f"{name}.b"]

    h = p["tokens"][tokens] + p["places"]
    for layer in range(LAYERS):
        x = linear(f"{layer}.qkv", norm(f"{layer}.n1", h))
        x = x.reshape(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = TF.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True)
        h = h + linear(f"{layer}.out", x.transpose(1, 2).reshape(h.shape))
        x = TF.gelu(linear(f"{layer}.up", norm(f"{layer}.n2", h)), approximate="tanh")
        h = h + linear(f"{layer}.down", x)
    logits = norm("n", h) @ p["tokens"].T
    return TF.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
