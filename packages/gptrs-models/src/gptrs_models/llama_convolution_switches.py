"""Switches of kinds with convolutions in the place of attention in some layers."""

from __future__ import annotations

from dataclasses import replace

from gptrs.api import ConfigFields
from gptrs_models.llama_config import Convolution, LlamaConfig, Names

NAMES = Names(
    output="out_proj",
    query_norm="q_layernorm",
    key_norm="k_layernorm",
    mlp="feed_forward",
    gate="w1",
    up="w3",
    down="w2",
    attention_in="operator_norm",
    mlp_in="ffn_norm",
    norm="embedding_norm",
)
"""Names of modules of LFM2."""


def lfm2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch short convolutions, the norm of heads, and the width of MLPs."""
    return replace(
        lfm2_layers(fields, config), intermediate_size=_width(fields, config.intermediate_size)
    )


def lfm2_layers(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch short convolutions and the norm of heads."""
    layers = config.num_hidden_layers
    if config.hidden_size % 2:
        raise fields.error("hidden_size", "must be even")
    short = Convolution(
        _layers(fields, layers),
        fields.integer("conv_L_cache", 3),
        fields.boolean("conv_bias", False),
    )
    return replace(
        config,
        names=NAMES,
        head_norm="rms",
        hidden_act="silu",
        tie_word_embeddings=fields.boolean("tie_embedding", config.tie_word_embeddings),
        convolution=short,
    )


def _layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """Return the layers with a convolution; older files have `full_attn_idxs`."""
    words = fields.choices("layer_types", ("conv", "full_attention"))
    if words is None:
        full = range(layers)
        if fields.get("full_attn_idxs") is not None:
            full = fields.integers("full_attn_idxs", (), minimum=0)
        return tuple(layer for layer in range(layers) if layer not in full)
    if len(words) != layers:
        raise fields.error("layer_types", f"must have one word for each of {layers} layers")
    return tuple(layer for layer, word in enumerate(words) if word == "conv")


def _width(fields: ConfigFields, inner: int) -> int:
    inner = fields.integer("block_ff_dim", inner)
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    if fields.settings.get("block_ffn_dim_multiplier", 1.0) is None:
        return inner
    multiple = fields.integer("block_multiple_of", 256)
    inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * inner)
    return -(-inner // multiple) * multiple
