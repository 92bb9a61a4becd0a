"""Switches of kinds whose attention and MLP are parallel: both read the input of the block."""

from __future__ import annotations

from dataclasses import replace

from gptrs.api import ConfigFields, ModelError
from gptrs_models.llama_alibi import bloom_slopes
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_switches import full_layers

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
        parallel=True,
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
        parallel=parallel,
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
        parallel=True,
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
        parallel=fields.boolean("use_parallel_residual", True),
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
        parallel=True,
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
        parallel=parallel,
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
