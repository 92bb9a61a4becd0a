"""Layers: weights from a checkpoint plus the functionals that use them."""

from gptrs.nn.attention import cached_attention, merge_heads, split_heads
from gptrs.nn.embedding import Embedding
from gptrs.nn.kv_cache import KVCache, LayerCache
from gptrs.nn.linear import Linear
from gptrs.nn.module import Module
from gptrs.nn.norm import LayerNorm

__all__ = [
    "Embedding",
    "KVCache",
    "LayerCache",
    "LayerNorm",
    "Linear",
    "Module",
    "cached_attention",
    "merge_heads",
    "split_heads",
]
