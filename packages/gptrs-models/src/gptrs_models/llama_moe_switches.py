"""Switches of kinds with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from gptrs.api import ConfigFields
from gptrs_models import llama_switches as switches
from gptrs_models.delta_net import Delta
from gptrs_models.llama_config import LlamaConfig, Names
from gptrs_models.llama_experts import Clamp, read_experts, sparse_layers


def mixtral(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures in all layers."""
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_local_experts", "num_experts"),
        count=8,
        chosen=2,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    experts = replace(experts, scope="block_sparse_moe", gate="w1", up="w3", down="w2")
    return replace(switches.plain(fields, config), experts=experts)


def qwen2_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures with an expert of all tokens, and biases."""
    config = replace(config, qkv_bias=fields.boolean("qkv_bias", True))
    shared = fields.integer("shared_expert_intermediate_size", 5632)
    names = ("num_experts",)
    return _qwen(fields, config, names, count=60, chosen=4, inner=1408, shared=shared)


def qwen3_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures, and the norm of heads."""
    config = switches.qwen3(fields, config)
    names = ("num_local_experts", "num_experts")
    return _qwen(fields, config, names, count=128, chosen=8, inner=768, shared=None)


def qwen3_next(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures with an expert of all tokens, delta nets, and gates of attention."""
    config = gated(fields, config, joined=True)
    shared = fields.integer("shared_expert_intermediate_size", 512)
    names = ("num_experts",)
    config = _qwen(fields, config, names, count=512, chosen=10, inner=512, shared=shared)
    assert config.experts is not None
    normalized = fields.boolean("norm_topk_prob", True)
    return replace(config, experts=replace(config.experts, normalized=normalized))


def qwen3_5(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch delta nets and gates of attention."""
    return gated(fields, config, joined=False)


def qwen3_5_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures of all layers with an expert of all tokens, too."""
    config = gated(fields, config, joined=False)
    shared = fields.integer("shared_expert_intermediate_size", 512)
    names = ("num_experts", "num_local_experts")
    config = _qwen(fields, config, names, count=256, chosen=8, inner=512, shared=shared)
    assert config.experts is not None
    layers = tuple(range(config.num_hidden_layers))
    return replace(config, experts=replace(config.experts, layers=layers, normalized=True))


def gated(fields: ConfigFields, config: LlamaConfig, joined: bool) -> LlamaConfig:
    """Switch delta nets, of `joined` projections or not, and gates of attention."""
    fields.require("use_sliding_window", False)
    layers = config.num_hidden_layers
    words = fields.choices("layer_types", ("linear_attention", "full_attention"))
    if words is None:
        period = fields.integer("full_attention_interval", 4)
        linear = tuple(layer for layer in range(layers) if (layer + 1) % period)
    elif len(words) != layers:
        raise fields.error("layer_types", f"must have one word for each of {layers} layers")
    else:
        linear = tuple(layer for layer, word in enumerate(words) if word == "linear_attention")
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        norm="rms_offset",
        head_norm="rms_offset",
        qkv_bias=bias,
        output_bias=bias,
        attention_gate=True,
        delta=_delta(fields, linear, joined),
    )


def _delta(fields: ConfigFields, layers: tuple[int, ...], joined: bool) -> Delta | None:
    keys = fields.integer("linear_num_key_heads", 16)
    values = fields.integer("linear_num_value_heads", 32)
    if values % keys:
        raise fields.error("linear_num_value_heads", f"must be a multiple of {keys}")
    value_dim = fields.integer("linear_value_head_dim", 128)
    if values * value_dim % 2:
        raise fields.error("linear_value_head_dim", f"times {values} heads must be even")
    if not layers:
        return None
    return Delta(
        layers,
        keys,
        values,
        fields.integer("linear_key_head_dim", 128),
        value_dim,
        fields.integer("linear_conv_kernel_dim", 4),
        joined,
    )


def olmoe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures in all layers, and norms of all heads together."""
    clip = fields.number("clip_qkv") if fields.get("clip_qkv") is not None else None
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_experts", "num_local_experts"),
        count=64,
        chosen=8,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    experts = replace(experts, normalized=fields.boolean("norm_topk_prob", False))
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        names=Names(),
        head_norm="width",
        qkv_clip=clip,
        qkv_bias=bias,
        output_bias=bias,
        experts=experts,
    )


def gpt_oss(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch sinks, biases, and mixtures with a limit."""
    bias = fields.boolean("attention_bias", True)
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_local_experts", "num_experts"),
        count=128,
        chosen=4,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    limit, slope = fields.number("swiglu_limit", 7.0), fields.number("swiglu_alpha", 1.702)
    experts = replace(experts, clamp=Clamp(limit, slope))
    return replace(config, qkv_bias=bias, output_bias=bias, sinks=True, experts=experts)


def _qwen(
    fields: ConfigFields,
    config: LlamaConfig,
    names: tuple[str, ...],
    *,
    count: int,
    chosen: int,
    inner: int,
    shared: int | None,
) -> LlamaConfig:
    layers = config.num_hidden_layers
    experts = read_experts(
        fields,
        layers,
        names=names,
        count=count,
        chosen=chosen,
        width="moe_intermediate_size",
        inner=inner,
    )
    experts = replace(
        experts,
        layers=sparse_layers(fields, layers),
        normalized=fields.boolean("norm_topk_prob", False),
        shared=shared,
    )
    return replace(config, experts=experts)
