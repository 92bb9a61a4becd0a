"""Multi-head self-attention over a whole sequence or with a key/value cache."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.nn.kv_cache import LayerCache


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * D] -> [B, heads, T, D]."""
    batch, length, width = x.shape
    return F.transpose(F.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """[B, heads, T, D] -> [B, T, heads * D]."""
    batch, heads, length, depth = x.shape
    return F.reshape(F.transpose(x, (0, 2, 1, 3)), (batch, length, heads * depth))


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache | None,
    position: Tensor,
    scale: float | None,
) -> tuple[Tensor, LayerCache | None]:
    """Causal attention of new positions, all [B, H, T, D], to themselves and the cached ones.

    `position` (rank-0 si64) is the number of positions in `cache`; without a cache the new ones are
    the whole sequence. Returns [B, H, T, D] and the cache with the new keys and values.
    """
    if cache is None:
        return F.attention(query, key, value, scale=scale, causal=True), None
    keys = F.update_cache(cache[0], key, position)
    values = F.update_cache(cache[1], value, position)
    mixed = F.attention(query, keys, values, scale=scale, causal=True, offset=position)
    return mixed, (keys, values)
