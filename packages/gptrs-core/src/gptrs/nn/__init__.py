"""Layers, the paged cache and base classes of models: weights of a checkpoint plus functionals."""

from gptrs.backend.sharding import Axis
from gptrs.checkpoint.expert_factors import ExpertWeight
from gptrs.nn.attention import (
    LayerCache,
    Scores,
    attention_with_sinks,
    merge_heads,
    self_attention,
    split_heads,
)
from gptrs.nn.cache_spec import CacheGroup, CacheSpec, cache_groups, convolution_cache, state_cache
from gptrs.nn.captured_once import captured_once
from gptrs.nn.causal_lm import CausalLMModule, MixedCausalLMModule
from gptrs.nn.decoder_cache import DecoderCache, DecoderState, KeysValues, WholeText
from gptrs.nn.draft_head import DraftHead
from gptrs.nn.expert_matrices import ExpertMatrices
from gptrs.nn.image_classifier import ConvNorm, ImageClassifierModule, class_head, output_channels
from gptrs.nn.layers import (
    ACTIVATIONS,
    BatchNorm2d,
    Computation,
    Conv2d,
    Embedding,
    HookPoint,
    LayerNorm,
    Linear,
    Module,
    RMSNorm,
)
from gptrs.nn.page_buffers import PageBuffers, PagedTexts
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep, pages_for, ragged_step
from gptrs.nn.rope import Rope, RopeSettings
from gptrs.nn.seq2seq import DecoderModule, Seq2SeqModule
from gptrs.nn.text_encoder import (
    MaskedLMModule,
    TextClassifierModule,
    TextEncoderModule,
    TokenClassifierModule,
)

__all__ = [
    "ACTIVATIONS",
    "PAGE_SIZE",
    "BatchNorm2d",
    "CacheGroup",
    "CacheSpec",
    "CausalLMModule",
    "Computation",
    "Conv2d",
    "ConvNorm",
    "DecoderCache",
    "DecoderModule",
    "DecoderState",
    "DraftHead",
    "Embedding",
    "ExpertMatrices",
    "ExpertWeight",
    "HookPoint",
    "ImageClassifierModule",
    "KeysValues",
    "LayerCache",
    "LayerNorm",
    "Axis",
    "Linear",
    "MaskedLMModule",
    "MixedCausalLMModule",
    "Module",
    "PageBuffers",
    "PagedTexts",
    "RMSNorm",
    "RaggedStep",
    "Rope",
    "RopeSettings",
    "Scores",
    "TextClassifierModule",
    "TextEncoderModule",
    "TokenClassifierModule",
    "WholeText",
    "Seq2SeqModule",
    "attention_with_sinks",
    "cache_groups",
    "captured_once",
    "class_head",
    "convolution_cache",
    "merge_heads",
    "output_channels",
    "pages_for",
    "ragged_step",
    "self_attention",
    "split_heads",
    "state_cache",
]
