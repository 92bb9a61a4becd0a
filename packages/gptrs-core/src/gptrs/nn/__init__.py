"""Layers: weights from a checkpoint plus the functionals that use them."""

from gptrs.nn.attention import cached_attention, merge_heads, split_heads
from gptrs.nn.batch_norm import BatchNorm2d
from gptrs.nn.cache_layer import CacheLayer
from gptrs.nn.cache_position import CachePosition, positions
from gptrs.nn.convolution import Conv2d
from gptrs.nn.embedding import Embedding
from gptrs.nn.kv_cache import KVCache, LayerCache
from gptrs.nn.linear import Linear
from gptrs.nn.module import Module
from gptrs.nn.norm import LayerNorm, RMSNorm

__all__ = [
    "BatchNorm2d",
    "Conv2d",
    "CacheLayer",
    "Embedding",
    "KVCache",
    "LayerCache",
    "LayerNorm",
    "Linear",
    "Module",
    "CachePosition",
    "RMSNorm",
    "cached_attention",
    "merge_heads",
    "positions",
    "split_heads",
]
