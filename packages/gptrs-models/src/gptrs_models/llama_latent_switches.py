"""Switches of the kinds with latent attention: DeepSeek-V2 and V3."""

from __future__ import annotations

from dataclasses import replace

from gptrs import functionals as F
from gptrs.api import ConfigFields
from gptrs_models.grouped_routing import BIAS, Routing
from gptrs_models.latent_attention import Latent, scale_of
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_experts import Experts, read_experts


def deepseek_v3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch latent attention, and mixtures with a bias that balances experts."""
    fields.require("scoring_func", "sigmoid")
    fields.require("topk_method", "noaux_tc")
    groups, chosen = fields.integer("n_group", 8), fields.integer("topk_group", 4)
    scale = fields.number("routed_scaling_factor", 2.5)
    dense = fields.integer("first_k_dense_replace", 3, minimum=0)
    experts = routed_experts(fields, config, count=256, inner=2048, shared=1, dense=dense, chosen=8)
    experts = replace(
        experts,
        normalized=fields.boolean("norm_topk_prob", True),
        routing=grouped(fields, Routing(groups, chosen, True, scale, BIAS), experts.count),
    )
    return replace(
        latent(fields, config),
        experts=experts,
        interleaved=fields.boolean("rope_interleave", True),
    )


def deepseek_v2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch latent attention, and mixtures of a softmax, in groups or not."""
    fields.require("scoring_func", "softmax")
    fields.require("norm_topk_prob", False)
    method = fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    groups, chosen = 1, 1
    if method != "greedy":
        groups, chosen = fields.integer("n_group"), fields.integer("topk_group")
    scale = fields.number("routed_scaling_factor", 1.0)
    dense = fields.integer("first_k_dense_replace", 0, minimum=0)
    experts = routed_experts(
        fields, config, count=64, inner=1407, shared=2, dense=dense, chosen=None
    )
    experts = replace(
        experts,
        normalized=False,
        routing=grouped(fields, Routing(groups, chosen, False, scale), experts.count),
    )
    bias = fields.boolean("mlp_bias", False)
    experts = replace(experts, shared_bias=bias)
    return replace(latent(fields, config), experts=experts, interleaved=True, mlp_bias=bias)


def latent(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch latent attention, with DeepSeek's defaults."""
    rank = None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank")
    if "q_lora_rank" not in fields.settings:
        rank = 1536
    plain, rotated = (
        fields.integer("qk_nope_head_dim", 128),
        fields.integer("qk_rope_head_dim", 64),
    )
    if rotated % 2:
        raise fields.error("qk_rope_head_dim", "must be even")
    value = fields.integer("v_head_dim", 128)
    latent = Latent(fields.integer("kv_lora_rank", 512), rank, plain, rotated, value)
    scaling = config.rope.scaling
    factor, all_dims = 1.0, 0.0
    if isinstance(scaling, F.YarnScaling):
        factor, all_dims = scaling.factor, scaling.mscale_all_dim or 0.0
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        head_dim=rotated,
        latent=latent,
        attention_scale=scale_of(plain + rotated, factor, all_dims),
        qkv_bias=bias,
        output_bias=bias,
    )


def routed_experts(
    fields: ConfigFields,
    config: LlamaConfig,
    *,
    count: int,
    inner: int,
    shared: int,
    dense: int,
    chosen: int | None,
) -> Experts:
    """Read experts beside those of all tokens, after `dense` layers without any."""
    fields.require("moe_layer_freq", 1)
    chosen = fields.integer("num_experts_per_tok", chosen)
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("n_routed_experts", "num_local_experts", "num_experts"),
        count=count,
        chosen=chosen,
        width="moe_intermediate_size",
        inner=inner,
    )
    together = fields.integer("n_shared_experts", shared, minimum=0) * experts.width
    layers = tuple(range(min(dense, config.num_hidden_layers), config.num_hidden_layers))
    return replace(experts, layers=layers, shared=together or None, shared_gate=False)


def grouped(fields: ConfigFields, routing: Routing, experts: int) -> Routing:
    """Return what was read; ModelError for groups that are not alike, or too small."""
    least = 2 if routing.sigmoid else 1
    if experts % routing.groups or experts // routing.groups < least:
        raise fields.error("n_group", f"must divide {experts} experts in groups of {least} or more")
    if routing.chosen_groups > routing.groups:
        raise fields.error("topk_group", f"must be at most {routing.groups}, the groups there are")
    return routing
