"""Switches of the kinds closest to Llama: where each differs from it, by its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gptrs import functionals as F
from gptrs.api.models import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models.latent_attention import Latent, scale_of
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_experts import BIAS, Experts, Routing, read_experts
from gptrs_models.short_convolution import Convolution

SANDWICH = Names(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
"""Norms before and after both halves (Gemma 2)."""

NORMS_AFTER = Names(
    attention_in=None,
    attention_out="post_attention_layernorm",
    mlp_in=None,
    mlp_out="post_feedforward_layernorm",
)
"""Norms after both halves only (OLMo 2)."""


def plain(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch nothing."""
    fields.require("no_rope_layers", None)
    return config


def biased(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Set `attention_bias` of all projections and `mlp_bias`."""
    fields.require("no_rope_layers", None)
    bias = fields.boolean("attention_bias", False)
    return with_biases(config, bias, fields.boolean("mlp_bias", False))


def internlm3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the biases, each by its own setting."""
    return replace(
        config,
        qkv_bias=fields.boolean("qkv_bias", False),
        output_bias=fields.boolean("bias", False),
        mlp_bias=fields.boolean("bias", False),
    )


def qwen2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the biases of queries, keys and values."""
    return replace(plain(fields, config), qkv_bias=True)


def qwen3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the norm of heads, and biases."""
    bias = fields.boolean("attention_bias", False)
    return replace(plain(fields, config), qkv_bias=bias, output_bias=bias, head_norm="rms")


def gemma(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms and embeddings: `1 + weight`, `sqrt(C) * x`."""
    fields.require("use_bidirectional_attention", False)
    # Old files say `gelu` and mean its tanh form.
    word = "gelu_pytorch_tanh" if config.hidden_act == "gelu" else config.hidden_act
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        hidden_act=word,
        qkv_bias=bias,
        output_bias=bias,
        norm="rms_offset",
        embedding_scale=math.sqrt(config.hidden_size),
    )


def gemma2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms after both halves, and soft limits of scores and logits."""
    return replace(
        gemma(fields, config),
        hidden_act=config.hidden_act,
        names=SANDWICH,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcap=_softcap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=_softcap(fields, "final_logit_softcapping", 30.0),
    )


def gemma3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the norm of heads; the soft limits are off."""
    return replace(
        gemma2(fields, config),
        head_norm="rms_offset",
        softcap=_softcap(fields, "attn_logit_softcapping", None),
        logit_softcap=_softcap(fields, "final_logit_softcapping", None),
    )


def phi3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch joined projections."""
    return replace(plain(fields, config), names=Names(qkv="qkv_proj", gate_up="gate_up_proj"))


def smollm3(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layers without a rotary embedding."""
    layers = config.num_hidden_layers
    interval = fields.integer("no_rope_layer_interval", 4)
    default = [int((layer + 1) % interval != 0) for layer in range(layers)]
    rotates = fields.integers("no_rope_layers", default, minimum=0)
    if len(rotates) != layers:
        raise fields.error("no_rope_layers", f"must have one number for each of {layers} layers")
    unrotated = tuple(layer for layer, flag in enumerate(rotates) if not flag)
    bias = fields.boolean("attention_bias", False)
    return replace(
        with_biases(config, bias, fields.boolean("mlp_bias", False)),
        unrotated_layers=unrotated,
    )


def olmo(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms without weights, and the limit of queries, keys and values."""
    clip = fields.number("clip_qkv") if fields.get("clip_qkv") is not None else None
    return replace(
        biased(fields, config), norm="layer_plain", rms_norm_eps=1e-5, qkv_clip=clip, mlp_bias=False
    )


def olmo2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms after both halves, and one over all heads."""
    return replace(biased(fields, config), names=NORMS_AFTER, head_norm="width", mlp_bias=False)


def granite(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch four factors."""
    return replace(
        biased(fields, config),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0, minimum=1e-30),
    )


def starcoder2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms, and an MLP without a gate."""
    bias = fields.boolean("use_bias", True)
    names = Names(gate=None, up="c_fc", down="c_proj")
    return replace(with_biases(config, bias, bias), names=names, norm="layer")


def exaone4(_: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms after both halves; with a window only its layers are rotated."""
    windows = config.sliding_window is not None
    return replace(
        config,
        names=NORMS_AFTER,
        head_norm="rms",
        unrotated_layers=full_layers(config) if windows else (),
    )


def glm(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch interleaved rotary and a joined MLP."""
    return replace(
        config,
        names=Names(gate_up="gate_up_proj"),
        interleaved=True,
        qkv_bias=fields.boolean("attention_bias", True),
    )


def glm4(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch norms after both halves too."""
    names = Names(
        gate_up="gate_up_proj",
        attention_out="post_self_attn_layernorm",
        mlp_out="post_mlp_layernorm",
    )
    return replace(glm(fields, config), names=names)


def seed_oss(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the biases, each by its own setting."""
    return replace(
        config,
        qkv_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def arcee(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch off the gate of the MLP."""
    return replace(biased(fields, config), names=Names(gate=None))


def helium(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch interleaved rotary."""
    return replace(biased(fields, config), output_bias=False, interleaved=True)


def ernie(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch interleaved rotary, and all biases by one setting."""
    bias = fields.boolean("use_bias", False)
    return replace(with_biases(config, bias, bias), interleaved=True)


def nemotron(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms of `1 + weight`, and an MLP without a gate."""
    return replace(biased(fields, config), names=Names(gate=None), norm="layer_offset")


def hunyuan(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch a norm of heads after the rotary embedding; `alpha` enlarges the base of that."""
    bias = fields.boolean("attention_bias", False)
    return replace(
        config,
        names=Names(query_norm="query_layernorm", key_norm="key_layernorm"),
        head_norm="rms",
        head_norm_after_rope=True,
        rope=_enlarged(fields, config),
        qkv_bias=bias,
        output_bias=bias,
    )


def _enlarged(fields: ConfigFields, config: LlamaConfig) -> RopeSettings:
    """Return the rotary embedding: with an `alpha` a "dynamic" one is that of a larger base."""
    rope, size = config.rope, config.head_dim
    given = fields.get("rope_scaling") or fields.get("rope_parameters")
    own = ConfigFields(cast("Mapping[str, object]", given or {}), "hunyuan")
    if not isinstance(rope.scaling, F.DynamicScaling) or not own.get("alpha") or size == 2:
        return rope
    theta = rope.theta * own.number("alpha") ** (size / (size - 2))
    return RopeSettings(theta, None, fields.integer("max_position_embeddings", 2048))


def _softcap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    """Return the limit of scores or logits; null in config.json is none."""
    found = fields.settings.get(name, default)
    return None if found is None else fields.number(name, default, minimum=1e-30)


def full_layers(config: LlamaConfig) -> tuple[int, ...]:
    """Return the numbers of the layers without the window."""
    layers = range(config.num_hidden_layers)
    return tuple(layer for layer in layers if layer not in config.sliding_layers)


LFM2_NAMES = Names(
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
        lfm2_layers(fields, config),
        intermediate_size=_adjusted_width(fields, config.intermediate_size),
    )


def lfm2_layers(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch short convolutions and the norm of heads."""
    layers = config.num_hidden_layers
    if config.hidden_size % 2:
        raise fields.error("hidden_size", "must be even")
    short = Convolution(
        _convolved_layers(fields, layers),
        config.hidden_size,
        fields.integer("conv_L_cache", 3),
        fields.boolean("conv_bias", False),
    )
    return replace(
        config,
        names=LFM2_NAMES,
        head_norm="rms",
        hidden_act="silu",
        tie_word_embeddings=fields.boolean("tie_embedding", config.tie_word_embeddings),
        convolution=short,
    )


def _convolved_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
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


def _adjusted_width(fields: ConfigFields, inner: int) -> int:
    inner = fields.integer("block_ff_dim", inner)
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    if fields.settings.get("block_ffn_dim_multiplier", 1.0) is None:
        return inner
    multiple = fields.integer("block_multiple_of", 256)
    inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * inner)
    return -(-inner // multiple) * multiple


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
