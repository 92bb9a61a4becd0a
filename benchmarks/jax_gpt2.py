"""GPT-2 as one writes it by hand in `jax.numpy`: the peer of `jax_overhead.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors.numpy import load_file

Weights = dict[str, Array]
Cache = tuple[tuple[Array, Array], ...]
"""Keys and values [H, S, D] of each layer."""


class HandWritten:
    """The model of a directory, compiled by `jax.jit`; a text of at most `limit` tokens."""

    def __init__(self, folder: Path, layers: int, heads: int, limit: int) -> None:
        arrays = load_file(folder / "model.safetensors")
        self._weights = {name: jnp.asarray(array) for name, array in arrays.items()}
        self._layers = layers
        width = arrays["wte.weight"].shape[1]
        self._cache_shape = (heads, limit, width // heads)
        step = partial(_step, layers=layers, heads=heads)
        self._step = jax.jit(step, donate_argnums=1)
        self.begin()

    def begin(self) -> None:
        """Forget the text."""
        empty = [(jnp.zeros(self._cache_shape), jnp.zeros(self._cache_shape))]
        self._cache: Cache = tuple(
            (jnp.copy(key), jnp.copy(value)) for key, value in empty * self._layers
        )
        self._length = 0

    def share(self, arrays: Sequence[Array]) -> None:
        """Read these arrays in the place of equal ones."""
        known = {_ends(array): array for array in arrays}
        self._weights = {
            name: known.get(_ends(array), array) for name, array in self._weights.items()
        }

    def append(self, tokens: list[int]) -> np.ndarray:
        """Return the logits [V] after the last of these tokens."""
        start = np.int32(self._length)
        logits, self._cache = self._step(
            self._weights, self._cache, np.array(tokens, np.int32), start
        )
        self._length += len(tokens)
        return np.asarray(logits)


def _ends(array: Array) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the shape and some elements, which tell random weights apart."""
    elements = np.asarray(array).ravel()
    return array.shape, elements[:64].tobytes(), elements[-64:].tobytes()


def _step(
    weights: Weights, cache: Cache, tokens: Array, start: Array, *, layers: int, heads: int
) -> tuple[Array, Cache]:
    """Return the logits after `tokens` [T], whose first has the position `start`."""
    positions = start + jnp.arange(tokens.shape[0])
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][positions]
    kept: list[tuple[Array, Array]] = []
    for layer in range(layers):
        of = {
            name.removeprefix(f"h.{layer}."): weight
            for name, weight in weights.items()
            if name.startswith(f"h.{layer}.")
        }
        mixed, pair = _attention(_normed(x, of, "ln_1"), of, cache[layer], positions, heads)
        kept.append(pair)
        x = x + mixed
        inner = jax.nn.gelu(_affine(_normed(x, of, "ln_2"), of, "mlp.c_fc"), approximate=True)
        x = x + _affine(inner, of, "mlp.c_proj")
    last = _normed(x[-1], weights, "ln_f")
    return weights["wte.weight"] @ last, tuple(kept)


def _attention(
    x: Array, weights: Weights, cache: tuple[Array, Array], positions: Array, heads: int
) -> tuple[Array, tuple[Array, Array]]:
    parts = jnp.split(_affine(x, weights, "attn.c_attn"), 3, axis=-1)
    query, key, value = (
        part.reshape(len(x), heads, -1).swapaxes(0, 1) for part in parts
    )  # (H, T, D)
    place = (0, positions[0], 0)
    keys = jax.lax.dynamic_update_slice(cache[0], key, place)
    values = jax.lax.dynamic_update_slice(cache[1], value, place)
    scores = query @ keys.swapaxes(1, 2) / np.sqrt(np.float32(query.shape[-1]))
    seen = jnp.arange(keys.shape[1]) <= positions[:, None]
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = (shares @ values).swapaxes(0, 1).reshape(x.shape)
    return _affine(mixed, weights, "attn.c_proj"), (keys, values)


def _affine(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _normed(x: Array, weights: Weights, name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
