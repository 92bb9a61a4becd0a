"""Switches of kinds with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from gptrs.api import ConfigFields
from gptrs_models import llama_switches as switches
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
