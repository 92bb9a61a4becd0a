"""Causal self-attention of the tokens of a step to themselves and to a layer's key/value cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor, tensor
from gptrs.nn.left_padding import checked_left_padding

LayerBuffers = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [B, K, slots, D]."""


class CachePosition(NamedTuple):
    """Where the tokens [B, T] of a compiled step stand; a pytree for `jit`.

    `offset` (si64[]) is the index of the first of them: how many came before, padding included.
    Texts of unequal length are padded at the left, and `left_padding` (si64[B]) counts the padding
    of each row. None means no padding at all, and compiles to programs without a mask.
    """

    offset: Tensor
    left_padding: Tensor | None = None

    @classmethod
    def at(cls, offset: int, left_padding: np.ndarray | None = None) -> CachePosition:
        """Return the position of tokens that follow `offset` others.

        UsageError unless `left_padding` is as `checked_left_padding` requires.
        """
        padding = checked_left_padding(left_padding)
        return cls(tensor(np.int64(offset)), None if padding is None else tensor(padding))


def positions(position: CachePosition, count: int) -> Tensor:
    """Return the positions of `count` tokens: si64 [T], or [B, T] where rows are padded.

    The first token of each text is at 0, and so is the padding before it.
    """
    index = F.arange(count) + position.offset  # (T,)
    if position.left_padding is None:
        return index
    batch = position.left_padding.shape[0]
    return F.maximum(index - F.reshape(position.left_padding, (batch, 1)), 0)  # (B, T)


class LayerCache:
    """Keys and values of one layer in one step; `update` appends those of the new tokens.

    `buffers` None stands for a whole text that is read at once: nothing is kept. With `window` each
    position sees the last `window` ones up to its own, and the buffers are a ring; see `CacheSpec`.
    """

    def __init__(
        self,
        position: CachePosition,
        window: int | None = None,
        buffers: LayerBuffers | None = None,
    ) -> None:
        self.position = position
        self.window = window
        self.buffers = buffers

    def update(self, key: Tensor, value: Tensor) -> LayerBuffers:
        """Append key and value, each [B, K, T, D]; return all keys and values [B, K, S, D]."""
        if self.buffers is None:
            return key, value
        keys, values = self.buffers
        slot, slots = self.position.offset, keys.shape[2]
        # Only a complete ring has more slots than its window, and only such a one can wrap.
        if self.window is not None and self.window < slots:
            slot = slot % slots
        self.buffers = F.update_cache(keys, key, slot), F.update_cache(values, value, slot)
        return self.buffers


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D], for `n_heads` H."""
    batch, length, width = x.shape
    x = F.reshape(x, (batch, length, n_heads, width // n_heads))  # (B, T, H, D)
    return F.transpose(x, (0, 2, 1, 3))  # (B, H, T, D)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, D] -> [B, T, H * D]."""
    batch, n_heads, length, head_dim = x.shape
    x = F.transpose(x, (0, 2, 1, 3))  # (B, T, H, D)
    return F.reshape(x, (batch, length, n_heads * head_dim))


def causal_attention(
    query: Tensor, keys: Tensor, values: Tensor, cache: LayerCache, scale: float | None = None
) -> Tensor:
    """Attention of new positions to themselves and those before, [B, H, T, D] -> the same.

    Keys and values [B, K, S, D] come from `cache.update`; H is a multiple of K. Text sees nothing
    of the padding at its left; padding sees itself. `scale` None stands for `D ** -0.5`.
    """
    position, window, cached = cache.position, cache.window, cache.buffers is not None
    count, slots = query.shape[2], keys.shape[2]
    if window is not None and window >= slots:
        window = None  # it hides nothing yet
    if position.left_padding is None and (window is None or not cached):
        offset = position.offset if cached else None
        return F.attention(
            query, keys, values, scale=scale, causal=True, window=window, offset=offset
        )
    indices = _ring_indices(position, count, slots) if cached and window else F.arange(slots)
    mask = _visible(position, count, indices, window)
    return F.attention(query, keys, values, mask=mask, scale=scale)


def _ring_indices(position: CachePosition, count: int, slots: int) -> Tensor:
    """The index of the key in each slot after `count` new ones, si64 [S]; below 0 for none yet.

    It is the last index up to the newest one that is congruent to the slot.
    """
    newest = position.offset + (count - 1)
    return newest - (newest - F.arange(slots)) % slots


def _visible(position: CachePosition, count: int, keys: Tensor, window: int | None) -> Tensor:
    """Which keys, at these indices [S], the new queries see: i1 [T, S], or [B, 1, T, S]."""
    queries = F.reshape(F.arange(count) + position.offset, (count, 1))
    seen = F.less_equal(keys, queries)  # (T, S)
    if window is not None:
        seen = F.logical_and(seen, F.greater(keys, queries - window))
    if position.left_padding is None:
        return F.logical_and(seen, F.greater_equal(keys, 0))
    first = F.reshape(position.left_padding, (position.left_padding.shape[0], 1, 1, 1))
    real = F.greater_equal(F.reshape(keys, (1, 1, 1, keys.shape[0])), first)  # (B, 1, 1, S)
    return F.logical_or(F.logical_and(seen, real), F.equal(keys, queries))  # (B, 1, T, S)
