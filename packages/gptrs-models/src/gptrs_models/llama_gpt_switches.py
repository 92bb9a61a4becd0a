"""Switches of kinds that came before Llama, or whose halves are parallel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_positions import bloom_slopes, mpt_slopes
from gptrs_models.llama_switches import full_layers
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
        order="in_stream" if after else "before",
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
        order="before" if before else "after",
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


ONE_NORM = Names(mlp_in="input_layernorm")
"""One norm before both halves, which are parallel."""


def phi(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch one norm before parallel halves, and an MLP without a gate."""
    names = Names(
        output="dense",
        query_norm="q_layernorm",
        key_norm="k_layernorm",
        gate=None,
        up="fc1",
        down="fc2",
        mlp_in="input_layernorm",
        norm="final_layernorm",
    )
    return replace(
        with_biases(config, True, True),
        names=names,
        norm="layer",
        head_norm="layer" if fields.boolean("qk_layernorm", False) else None,
        order="parallel",
        head_bias=True,
    )


def stablelm(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms and parallel halves."""
    parallel = fields.boolean("use_parallel_residual", False)
    names = ONE_NORM if parallel else Names()
    return replace(
        config,
        names=replace(names, query_norm="q_layernorm", key_norm="k_layernorm"),
        norm="layer",
        head_norm="each" if fields.boolean("qk_layernorm", False) else None,
        order="parallel" if parallel else "before",
        qkv_bias=fields.boolean("use_qkv_bias", False),
    )


def cohere(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch one norm without bias before parallel halves, and interleaved rotary."""
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        names=ONE_NORM,
        norm="layer_weight",
        head_norm="each" if fields.boolean("use_qk_norm", False) else None,
        order="parallel",
        interleaved=True,
        qkv_bias=bias,
        output_bias=bias,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


def cohere2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch off the rotary embedding of layers without the window."""
    return replace(cohere(fields, config), head_norm=None, unrotated_layers=full_layers(config))


def gpt_neox(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, layer norms, joined projections and parallel halves."""
    names = Names(
        body="gpt_neox",
        embed="embed_in",
        attention="attention",
        qkv="query_key_value",
        output="dense",
        gate=None,
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        norm="final_layer_norm",
        head="embed_out",
    )
    bias = fields.boolean("attention_bias", True)
    return replace(
        with_biases(config, bias, True),
        num_key_value_heads=config.num_attention_heads,
        names=names,
        norm="layer",
        order="parallel" if fields.boolean("use_parallel_residual", True) else "before",
        qkv_groups=True,
    )


def gptj(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, one norm before parallel halves, and interleaved rotary."""
    names = Names(
        body="transformer",
        embed="wte",
        layers="h",
        attention="attn",
        output="out_proj",
        gate=None,
        up="fc_in",
        down="fc_out",
        attention_in="ln_1",
        mlp_in="ln_1",
        norm="ln_f",
    )
    rotated = fields.integer("rotary_dim", 64)
    if rotated > config.head_dim or rotated % 2:
        raise fields.error("rotary_dim", f"must be even and at most {config.head_dim}")
    return replace(
        config,
        num_key_value_heads=config.num_attention_heads,
        names=names,
        norm="layer",
        intermediate_size=fields.integer("n_inner", 4 * config.hidden_size),
        order="parallel",
        interleaved=True,
        mlp_bias=True,
        head_bias=True,
        rope=replace(config.rope, rotated=rotated / config.head_dim),
    )


def codegen(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch a joined projection in the four parts that CodeGen was trained in."""
    fields.require("scale_attn_weights", True)
    if config.hidden_size % 4:
        raise fields.error("n_embd", "must be a multiple of 4")
    config = gptj(fields, config)
    return replace(config, names=replace(config.names, qkv="qkv_proj"), qkv_shards=4)


def falcon(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, joined projections and parallel halves, or linear biases (Falcon RW)."""
    fields.require("apply_residual_connection_post_layernorm", False)
    new = fields.boolean("new_decoder_architecture", False)
    fields.without_effect("parallel_attn" if new else "num_kv_heads")
    parallel = new or fields.boolean("parallel_attn", True)
    two_norms = new and fields.integer("num_ln_in_parallel_attn", 2) == 2
    shared = parallel and not two_norms
    names = Names(
        body="transformer",
        embed="word_embeddings",
        layers="h",
        attention="self_attention",
        qkv="query_key_value",
        output="dense",
        gate=None,
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        attention_in="ln_attn" if two_norms else "input_layernorm",
        mlp_in="ln_mlp" if two_norms else "input_layernorm" if shared else Names.mlp_in,
        norm="ln_f",
    )
    heads, bias = config.num_attention_heads, fields.boolean("bias", False)
    single = 1 if fields.boolean("multi_query", True) else heads
    kv_heads = fields.integer("num_kv_heads", heads) if new else single
    if heads % kv_heads:
        raise ModelError(
            f"`num_attention_heads` ({heads}) is no multiple of `num_kv_heads` ({kv_heads})"
        )
    linear = fields.boolean("alibi", False)
    if linear and kv_heads != heads:
        raise fields.error("alibi", f"must be false where {heads} heads share {kv_heads} of keys")
    return replace(
        with_biases(config, bias, bias),
        names=names,
        norm="layer",
        num_key_value_heads=kv_heads,
        intermediate_size=fields.integer("ffn_hidden_size", 4 * config.hidden_size),
        order="parallel" if parallel else "before",
        qkv_groups=True,
        alibi=bloom_slopes(heads) if linear else (),
        alibi_rounded=linear,
    )


def refined_web(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Read the settings of Falcon under their names before transformers had it."""
    groups = fields.get("n_head_kv")
    own = {"new_decoder_architecture": groups is not None, "num_kv_heads": groups}
    settings = fields.overlaid(own, {"multi_query": False, "parallel_attn": False})
    return falcon(ConfigFields(settings, "RefinedWeb"), config)
