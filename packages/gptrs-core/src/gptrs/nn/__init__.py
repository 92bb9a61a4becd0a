"""Layers, caches and base classes of models: weights from a checkpoint plus functionals."""

from gptrs.nn.activations import ACTIVATIONS
from gptrs.nn.attention import (
    CachePosition,
    LayerBuffers,
    LayerCache,
    causal_attention,
    merge_heads,
    positions,
    split_heads,
)
from gptrs.nn.batch_norm import BatchNorm2d
from gptrs.nn.cache_spec import CacheSpec
from gptrs.nn.causal_lm import CausalLMModule
from gptrs.nn.convolution import Conv2d
from gptrs.nn.embedding import Embedding
from gptrs.nn.image_classifier import ConvNorm, ImageClassifierModule, class_head, output_channels
from gptrs.nn.kv_cache import KVCache
from gptrs.nn.linear import Linear
from gptrs.nn.module import Module
from gptrs.nn.norm import LayerNorm, RMSNorm
from gptrs.nn.rope import Rope
from gptrs.nn.rope_settings import RopeSettings

__all__ = [
    "ACTIVATIONS",
    "BatchNorm2d",
    "CachePosition",
    "CacheSpec",
    "CausalLMModule",
    "Conv2d",
    "ConvNorm",
    "Embedding",
    "ImageClassifierModule",
    "KVCache",
    "LayerBuffers",
    "LayerCache",
    "LayerNorm",
    "Linear",
    "Module",
    "RMSNorm",
    "Rope",
    "RopeSettings",
    "causal_attention",
    "class_head",
    "merge_heads",
    "output_channels",
    "positions",
    "split_heads",
]
