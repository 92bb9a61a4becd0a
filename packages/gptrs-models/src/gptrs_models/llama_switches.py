"""Switches: changes of `LlamaConfig` by the settings of a kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.api.models import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models.latent_attention import Latent, scale_of
from gptrs_models.llama_config import LlamaConfig, Names
from gptrs_models.llama_experts import Clamp, Experts, Routing, read_experts
from gptrs_models.short_convolution import Convolution

Switch: TypeAlias = Callable[[ConfigFields, LlamaConfig], LlamaConfig]
"""Changes the config of a kind by the settings of config.json."""
Reading: TypeAlias = Callable[[ConfigFields, LlamaConfig], object]
"""Reads the value of a field from the settings."""
Value: TypeAlias = (
    "Reading | Names | Routing | Clamp | str | float | tuple[str | float, ...] | None"
)
"""The value of a field, or its reader."""


def values_of(
    values: Mapping[str, Value], fields: ConfigFields, config: LlamaConfig
) -> dict[str, object]:
    """Return the values of fields, calling their readers."""
    return {name: each(fields, config) if callable(each) else each for name, each in values.items()}


def switch(*before: Switch, **values: Value) -> Switch:
    """Return a switch that sets fields of `LlamaConfig`, after those `before`."""

    def apply(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
        for each in before:
            config = each(fields, config)
        return replace(config, **values_of(values, fields, config))

    return apply


def needs(**settings: object) -> Switch:
    """Return a switch that only raises ModelError for settings with other values than these."""

    def check(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
        for name, value in settings.items():
            fields.require(name, value)
        return config

    return check


def ignores(*names: str) -> Switch:
    """Return a switch that does nothing: the settings `names` have no effect in the kind."""

    def ignore(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
        fields.without_effect(*names)
        return config

    return ignore


# Readers of one setting.


def flag(name: str, default: bool = False) -> Reading:
    """Read true or false."""
    return lambda fields, _: fields.boolean(name, default)


def number(name: str, default: float) -> Reading:
    """Read a number >= 0."""
    return lambda fields, _: fields.number(name, default)


def optional(name: str) -> Reading:
    """Read a number >= 0; None if it is missing."""
    return lambda fields, _: None if fields.get(name) is None else fields.number(name)


def limit(name: str, default: float | None) -> Reading:
    """Read the soft cap of scores or logits; null in config.json: none."""

    def read(fields: ConfigFields, _: LlamaConfig) -> float | None:
        found = fields.settings.get(name, default)
        return None if found is None else fields.number(name, default, minimum=1e-30)

    return read


def where(name: str, default: bool, yes: Value, no: Value = None) -> Reading:
    """Read true or false, for one of two values."""
    return lambda fields, _: yes if fields.boolean(name, default) else no


def biases(name: str, default: bool = False, mlp: bool = False) -> Mapping[str, Value]:
    """Return the bias fields that one setting switches: of attention, and optionally of the MLP."""
    own = ("qkv_bias", "output_bias", "mlp_bias") if mlp else ("qkv_bias", "output_bias")
    return dict.fromkeys(own, flag(name, default))


# Readers that several kinds share.


def query_heads(_: ConfigFields, config: LlamaConfig) -> int:
    """Return the number of query heads, for as many key/value heads."""
    return config.num_attention_heads


def every_layer(_: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the indices of all layers."""
    return tuple(range(config.num_hidden_layers))


def full_layers(_: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the indices of the layers without the window."""
    layers = range(config.num_hidden_layers)
    return tuple(layer for layer in layers if layer not in config.sliding_layers)


def windows(default: Callable[[ConfigFields, LlamaConfig], Iterable[int]]) -> Reading:
    """Return a reader of the layers with the window: of `layer_types`, else of `default`."""

    def read(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
        if config.sliding_window is None or fields.get("layer_types") is not None:
            return config.sliding_layers
        return tuple(default(fields, config))

    return read


def root_of_width(_: ConfigFields, config: LlamaConfig) -> float:
    """Return `sqrt(C)`, by which embeddings are multiplied."""
    return math.sqrt(config.hidden_size)


def layers_called(
    fields: ConfigFields, layers: int, name: str, own: str, other: str
) -> tuple[int, ...] | None:
    """Return the layers that the list `name` calls `own`, not `other`; None if it is missing."""
    words = fields.choices(name, (own, other))
    if words is None:
        return None
    if len(words) != layers:
        raise fields.error(name, f"must have one word for each of {layers} layers")
    return tuple(layer for layer, word in enumerate(words) if word == own)


# Switches that several kinds share.

plain = needs(no_rope_layers=None)
"""Nothing."""
biased = switch(plain, **biases("attention_bias"), mlp_bias=flag("mlp_bias"))
"""`attention_bias` of all projections, and `mlp_bias`."""
qwen3 = switch(plain, **biases("attention_bias"), head_norm="rms")
"""The norm of heads, and biases."""
granite = switch(
    biased,
    embedding_scale=number("embedding_multiplier", 1.0),
    residual_scale=number("residual_multiplier", 1.0),
    attention_scale=number("attention_multiplier", 1.0),
    logit_scale=lambda fields, _: 1.0 / fields.number("logits_scaling", 1.0, minimum=1e-30),
)
"""Four factors."""


def _enlarged(fields: ConfigFields, config: LlamaConfig) -> RopeSettings:
    """Return the rotary embedding; with `alpha`, a "dynamic" one has a larger base."""
    rope, size = config.rope, config.head_dim
    given = fields.get("rope_scaling") or fields.get("rope_parameters")
    own = ConfigFields(cast("Mapping[str, object]", given or {}), "hunyuan")
    if not isinstance(rope.scaling, F.DynamicScaling) or not own.get("alpha") or size == 2:
        return rope
    theta = rope.theta * own.number("alpha") ** (size / (size - 2))
    return RopeSettings(theta, None, fields.integer("max_position_embeddings", 2048))


hunyuan = switch(
    **biases("attention_bias"),
    names=Names(query_norm="query_layernorm", key_norm="key_layernorm"),
    head_norm="rms",
    head_norm_after_rope=True,
    rope=_enlarged,
)
"""A norm of heads after the rotary embedding; `alpha` enlarges the base of the embedding."""


def _short_convolution(fields: ConfigFields, config: LlamaConfig) -> Convolution:
    if config.hidden_size % 2:
        raise fields.error("hidden_size", "must be even")
    return Convolution(
        _convolved_layers(fields, config.num_hidden_layers),
        config.hidden_size,
        fields.integer("conv_L_cache", 3),
        fields.boolean("conv_bias", False),
    )


def _convolved_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """Return the layers with a convolution; older files have `full_attn_idxs`."""
    found = layers_called(fields, layers, "layer_types", "conv", "full_attention")
    if found is not None:
        return found
    full = range(layers)
    if fields.get("full_attn_idxs") is not None:
        full = fields.integers("full_attn_idxs", (), minimum=0)
    return tuple(layer for layer in range(layers) if layer not in full)


lfm2 = switch(
    names=Names(
        output="out_proj", query_norm="q_layernorm", key_norm="k_layernorm", mlp="feed_forward",
        gate="w1", up="w3", down="w2", attention_in="operator_norm", mlp_in="ffn_norm",
        norm="embedding_norm",
    ),
    head_norm="rms",
    hidden_act="silu",
    tie_word_embeddings=lambda f, c: f.boolean("tie_embedding", c.tie_word_embeddings),
    convolution=_short_convolution,
)  # fmt: skip
"""Short convolutions and the norm of heads."""


# Latent attention and experts of DeepSeek.


def latent(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch on latent attention, with DeepSeek's defaults."""
    rank = None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank")
    if "q_lora_rank" not in fields.settings:
        rank = 1536
    plain = fields.integer("qk_nope_head_dim", 128)
    rotated = fields.integer("qk_rope_head_dim", 64)
    if rotated % 2:
        raise fields.error("qk_rope_head_dim", "must be even")
    value = fields.integer("v_head_dim", 128)
    found = Latent(fields.integer("kv_lora_rank", 512), rank, plain, rotated, value)
    scaling = config.rope.scaling
    factor, all_dims = 1.0, 0.0
    if isinstance(scaling, F.YarnScaling):
        factor, all_dims = scaling.factor, scaling.mscale_all_dim or 0.0
    scale = scale_of(plain + rotated, factor, all_dims)
    changed = replace(config, head_dim=rotated, latent=found, attention_scale=scale)
    return switch(**biases("attention_bias"))(fields, changed)


def routed_experts(
    fields: ConfigFields,
    config: LlamaConfig,
    *,
    count: int | None,
    inner: int,
    shared: int,
    dense: int,
    chosen: int | None,
) -> Experts:
    """Read routed and shared experts; the first `dense` layers have none.

    `count`, `inner`, `shared`, `dense` and `chosen` are defaults.
    """
    dense = fields.integer("first_k_dense_replace", dense, minimum=0)
    fields.require("moe_layer_freq", 1)
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
    """Return `routing`; ModelError for groups of different sizes, or too small ones."""
    least = 2 if routing.sigmoid else 1
    if experts % routing.groups or experts // routing.groups < least:
        raise fields.error("n_group", f"must divide {experts} experts in groups of {least} or more")
    if routing.chosen_groups > routing.groups:
        raise fields.error("topk_group", f"must be at most {routing.groups}, the number of groups")
    return routing
