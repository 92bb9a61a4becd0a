"""Small networks in plain JAX, as a library such as flax lowers them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Weights = dict[str, Any]


def weights(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Return arrays of these shapes, the same each time."""
    dice = np.random.default_rng(5)
    return {
        name: (dice.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in shapes.items()
    }


def mlp(w: Weights, x: Any) -> Any:
    """Return class probabilities of [B, 16]."""
    hidden = jax.nn.relu(x @ w["first"] + w["bias"])
    hidden = (hidden - hidden.mean(-1, keepdims=True)) * lax.rsqrt(
        hidden.var(-1, keepdims=True) + 1e-5
    )
    return jax.nn.softmax(hidden @ w["last"])


MLP = weights({"first": (16, 64), "bias": (64,), "last": (64, 5)})


def cnn(w: Weights, images: Any) -> Any:
    """Return logits of images [B, 8, 8, 3]."""
    numbers = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(images, w["conv"], (1, 1), "SAME", dimension_numbers=numbers)
    x = jax.nn.gelu(x)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(x.shape[0], -1) @ w["last"]


CNN = weights({"conv": (3, 3, 3, 8), "last": (128, 4)})


def attention(w: Weights, x: Any) -> Any:
    """Return causal self-attention of [B, T, 32] in 4 heads, with a residual."""
    batch, length, width = x.shape
    query, key, value = (
        (x @ w[name]).reshape(batch, length, 4, width // 4) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bthd,bshd->bhts", query, key) / np.sqrt(width // 4).astype(np.float32)
    mask = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    mixed = jnp.einsum("bhts,bshd->bthd", shares, value).reshape(batch, length, width)
    return x + mixed @ w["out"]


ATTENTION = weights({name: (32, 32) for name in ("query", "key", "value", "out")})


def gru(w: Weights, x: Any) -> Any:
    """Return the states of a gated recurrent unit over [T, 8], by scan."""

    def step(state: Any, row: Any) -> tuple[Any, Any]:
        update, reset = jnp.split(jax.nn.sigmoid(row @ w["in"] + state @ w["gates"]), 2)
        new = jnp.tanh(row @ w["new"] + (reset * state) @ w["candidate"])
        state = update * state + (1 - update) * new
        return state, state

    return lax.scan(step, jnp.zeros(12, jnp.float32), x)


GRU = weights({"in": (8, 24), "gates": (12, 24), "new": (8, 12), "candidate": (12, 12)})


def tokens(w: Weights, ids: Any) -> Any:
    """Return the best next tokens of ids [B, T], and the two best scores."""
    hidden = jnp.asarray(w["table"])[ids].mean(1)
    logits = jnp.einsum("be,ve->bv", hidden, w["table"])
    return jnp.argmax(logits, -1), lax.top_k(logits, 2)[0]


TOKENS = weights({"table": (60, 24)})
