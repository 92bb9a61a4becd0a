"""Switches of the kinds closest to Llama: where each differs from it, by its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gptrs import functionals as F
from gptrs.api import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models.llama_config import LlamaConfig, Names, with_biases

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
