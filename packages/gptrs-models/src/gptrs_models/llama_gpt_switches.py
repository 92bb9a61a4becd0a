"""Switches of kinds that came before Llama, with learned positions or linear biases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gptrs.api import ConfigFields
from gptrs_models.llama_alibi import bloom_slopes, mpt_slopes
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.sines import Sines

GPT_NAMES = Names(
    body="transformer",
    embed="wte",
    positions="wpe",
    layers="h",
    attention="attn",
    output="c_proj",
    gate=None,
    up="c_fc",
    down="c_proj",
    attention_in="ln_1",
    mlp_in="ln_2",
    norm="ln_f",
)
"""Names of GPT-2."""

BLOOM_NAMES = Names(
    body="transformer",
    embed="word_embeddings",
    embed_norm="word_embeddings_layernorm",
    layers="h",
    attention="self_attention",
    qkv="query_key_value",
    output="dense",
    gate=None,
    up="dense_h_to_4h",
    down="dense_4h_to_h",
    norm="ln_f",
)

MPT_NAMES = Names(
    body="transformer",
    embed="wte",
    layers="blocks",
    attention="attn",
    qkv="Wqkv",
    output="out_proj",
    mlp="ffn",
    gate=None,
    attention_in="norm_1",
    mlp_in="norm_2",
    norm="norm_f",
)


FAIRSEQ_NAMES = Names(
    body="model.decoder",
    positions="embed_positions",
    output="out_proj",
    mlp=None,
    gate=None,
    up="fc1",
    down="fc2",
    attention_in="self_attn_layer_norm",
    mlp_in="final_layer_norm",
    norm="final_layer_norm",
)
"""Names of OPT."""


def unrotated(config: LlamaConfig, names: Names, bias: bool = True) -> LlamaConfig:
    """Switch names, layer norms, all biases, as many key heads as heads, and no rotary."""
    return replace(
        with_biases(config, bias, bias),
        names=names,
        num_key_value_heads=config.num_attention_heads,
        norm="layer" if bias else "layer_weight",
        unrotated_layers=tuple(range(config.num_hidden_layers)),
    )


def gpt_bigcode(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch one head of keys and values; the MLP is four times as wide without `n_inner`."""
    fields.require("add_cross_attention", False)
    shared = fields.boolean("multi_query", True)
    scaled = fields.boolean("scale_attn_weights", True)
    return replace(
        unrotated(config, replace(GPT_NAMES, qkv="c_attn")),
        intermediate_size=_inner(fields, "n_inner", config),
        num_key_value_heads=1 if shared else config.num_attention_heads,
        qkv_groups=not shared,
        attention_scale=None if scaled else 1.0,
    )


def gpt_neo(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch scores without a scale, and the window of the layers called "local"."""
    layers, given = config.num_hidden_layers, fields.get("attention_layers")
    words: list[object] = ["local" if layer % 2 else "global" for layer in range(layers)]
    if given is not None:
        words = cast("list[object]", given) if isinstance(given, list) else [given]
    if len(words) != layers or not all(word in ("global", "local") for word in words):
        raise fields.error("attention_layers", f"must have `global` or `local` for {layers} layers")
    return replace(
        unrotated(config, replace(GPT_NAMES, attention="attn.attention", output="out_proj")),
        intermediate_size=_inner(fields, "intermediate_size", config),
        qkv_bias=False,
        attention_scale=1.0,
        sliding_window=fields.integer("window_size", 256),
        sliding_layers=tuple(layer for layer, word in enumerate(words) if word == "local"),
    )


def bloom(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch linear biases, and a norm of the embeddings."""
    after = fields.boolean("apply_residual_connection_post_layernorm", False)
    return replace(
        unrotated(config, BLOOM_NAMES),
        intermediate_size=4 * config.hidden_size,
        hidden_act="gelu_pytorch_tanh",
        qkv_groups=True,
        alibi=bloom_slopes(config.num_attention_heads),
        residual_after_norm=after,
    )


def mpt(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch linear biases, and norms and projections without biases."""
    fields.require("no_bias", True)
    fields.require("logit_scale", None)
    fields.require("expansion_ratio", 4)
    given = fields.get("attn_config")
    if given is not None and not isinstance(given, Mapping):
        raise fields.error("attn_config", "must be a table")
    own = ConfigFields(cast("Mapping[str, object]", given or {}), "mpt")
    for name, value in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        own.require(name, value)
    own.require("attn_type", "multihead_attention")
    scaled, clipped = own.get("softmax_scale") is not None, own.get("clip_qkv") is not None
    return replace(
        unrotated(config, MPT_NAMES, bias=False),
        intermediate_size=4 * config.hidden_size,
        hidden_act="gelu",
        attention_scale=own.number("softmax_scale") if scaled else None,
        qkv_clip=own.number("clip_qkv") if clipped else None,
        alibi=mpt_slopes(config.num_attention_heads, own.number("alibi_bias_max", 8.0)),
    )


def persimmon(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms, joined projections, and a norm of heads."""
    names = Names(
        qkv="query_key_value",
        output="dense",
        query_norm="q_layernorm",
        key_norm="k_layernorm",
        gate=None,
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        norm="final_layernorm",
    )
    return replace(
        with_biases(config, True, True),
        names=names,
        num_key_value_heads=config.num_attention_heads,
        norm="layer",
        head_norm="layer" if fields.boolean("qk_layernorm", True) else None,
        qkv_groups=True,
    )


def opt(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, learned positions from row 2 on, and perhaps norms behind both halves."""
    fields.require("layer_norm_elementwise_affine", True)
    before = fields.boolean("do_layer_norm_before", True)
    width = config.hidden_size
    inner = fields.integer("word_embed_proj_dim", width)
    names = FAIRSEQ_NAMES
    if not before:
        names = replace(
            names,
            attention_in=None,
            attention_out="self_attn_layer_norm",
            mlp_in=None,
            mlp_out="final_layer_norm",
        )
    bias = fields.boolean("enable_bias", True)
    return replace(
        with_biases(config, bias, bias),
        num_key_value_heads=config.num_attention_heads,
        names=names,
        norm="layer",
        unrotated_layers=tuple(range(config.num_hidden_layers)),
        position_offset=2,
        norm_after_sum=not before,
        final_norm=before and not fields.boolean("_remove_final_layer_norm", False),
        embedding_width=None if inner == width else inner,
    )


def biogpt(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, learned positions from row 2 on, and embeddings times `sqrt(C)`."""
    fields.without_effect("layer_norm_eps")
    names = replace(FAIRSEQ_NAMES, body="biogpt", norm="layer_norm", head="output_projection")
    return replace(
        unrotated(config, names),
        position_offset=2,
        embedding_scale=_root(fields, config),
    )


def xglm(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, positions that are sines, and embeddings times `sqrt(C)`."""
    fields.require("add_cross_attention", False)
    if config.hidden_size < 4:
        raise fields.error("d_model", "must be at least 4")
    names = replace(FAIRSEQ_NAMES, body="model", positions=None, norm="layer_norm")
    padding = fields.integer("pad_token_id", 1, minimum=0)
    return replace(
        unrotated(config, names),
        sines=Sines(config.context_length, first=2, silent=padding),
        embedding_scale=_root(fields, config),
    )


def _root(fields: ConfigFields, config: LlamaConfig) -> float:
    return math.sqrt(config.hidden_size) if fields.boolean("scale_embedding", True) else 1.0


def _inner(fields: ConfigFields, name: str, config: LlamaConfig) -> int:
    return fields.integer(name, 4 * config.hidden_size)
