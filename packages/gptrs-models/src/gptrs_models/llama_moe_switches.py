"""Switches of the kinds with mixtures of experts, and of those with layers that are recurrent."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from gptrs import functionals as F
from gptrs.api.models import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models import llama_switches as switches
from gptrs_models.delta_net import Delta
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_experts import BIAS, Clamp, Experts, Routing, read_experts, sparse_layers
from gptrs_models.mamba import Sizes
from gptrs_models.mamba2 import Mamba2Config, MambaLayers, time_limits


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


GRANITE_JOINED = ("input_linear.weight", "output_linear.weight")


def glm4_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch biases, a norm of heads, and mixtures as those of DeepSeek-V3."""
    return replace(
        config,
        qkv_bias=fields.boolean("attention_bias", False),
        head_norm="rms" if fields.boolean("use_qk_norm", False) else None,
        experts=routed(fields, config, count=128, inner=1408, dense=1, scale=1.0),
    )


def dots1(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch what Qwen3 does, and mixtures as those of DeepSeek-V3."""
    experts = routed(fields, config, count=None, inner=1408, dense=0, scale=1.0)
    experts = replace(experts, normalized=fields.boolean("norm_topk_prob", False))
    return replace(switches.qwen3(fields, config), experts=experts)


def glm4_moe_lite(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch latent attention, and mixtures as those of DeepSeek-V3 after the first layer."""
    own = fields.overlaid({}, {"q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192})
    experts = routed(fields, config, count=64, inner=1536, dense=1, scale=1.8, chosen=4)
    words = fields.choices("mlp_layer_types", ("dense", "sparse"))
    if words is not None:
        if len(words) != config.num_hidden_layers:
            raise fields.error("mlp_layer_types", "must have one word for each layer")
        sparse = tuple(layer for layer, word in enumerate(words) if word == "sparse")
        experts = replace(experts, layers=sparse)
    config = switches.latent(ConfigFields(own, "glm4_moe_lite"), config)
    return replace(config, experts=experts, interleaved=fields.boolean("rope_interleave", True))


def routed(
    fields: ConfigFields,
    config: LlamaConfig,
    *,
    count: int | None,
    inner: int,
    dense: int,
    scale: float,
    chosen: int = 8,
) -> Experts:
    """Read experts that a sigmoid and biases choose, in groups or not."""
    dense = fields.integer("first_k_dense_replace", dense, minimum=0)
    total = fields.integer("n_routed_experts", count)
    experts = switches.routed_experts(
        fields, config, count=total, inner=inner, shared=1, dense=dense, chosen=chosen
    )
    groups, among = fields.integer("n_group", 1), fields.integer("topk_group", 1)
    factor = fields.number("routed_scaling_factor", scale)
    routing = Routing(groups, among, True, factor, BIAS)
    if groups > 1:
        routing = switches.grouped(fields, routing, experts.count)
    normalized = fields.boolean("norm_topk_prob", True)
    return replace(experts, normalized=normalized, routing=routing)


def ernie4_5_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch interleaved rotary, and mixtures of some layers beside an MLP."""
    for name, only in (("use_bias", False), ("moe_norm_min", 1e-12)):
        fields.require(name, only)
    layers = config.num_hidden_layers
    experts = read_experts(
        fields,
        layers,
        names=("moe_num_experts", "num_experts"),
        count=64,
        chosen=6,
        chosen_name="moe_k",
        width="moe_intermediate_size",
        inner=1536,
    )
    first = fields.integer("moe_layer_start_index", 1, minimum=0)
    last = fields.integer("moe_layer_end_index", -1, minimum=-1)
    step = fields.integer("moe_layer_interval", 1)
    among = range(first, layers if last == -1 else min(last + 1, layers))
    shared = fields.integer("moe_num_shared_experts", 2, minimum=0) * experts.width
    experts = replace(
        experts,
        layers=tuple(layer for layer in among if (layer + 1) % step == 0),
        shared=shared or None,
        shared_gate=False,
        routing=Routing(bias="moe_statics.e_score_correction_bias", least=0.0),
    )
    return replace(config, interleaved=True, experts=experts)


def hunyuan_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch a norm of heads after the rotary embedding, and mixtures beside an MLP."""
    alike = {name: _alike(fields, name) for name in ("num_experts", "moe_topk")}
    experts = read_experts(
        ConfigFields(fields.overlaid(alike), "hunyuan_v1_moe"),
        config.num_hidden_layers,
        names=("num_experts",),
        count=1,
        chosen=1,
        chosen_name="moe_topk",
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    experts = replace(
        experts,
        router="gate.wg",
        shared=config.intermediate_size,
        shared_gate=False,
        shared_scope="mlp.shared_mlp",
    )
    return replace(switches.hunyuan(fields, config), experts=experts)


def _alike(fields: ConfigFields, name: str) -> object:
    """Return a number, or the one that stands in a list for every layer."""
    found = fields.get(name, 1)
    if not isinstance(found, list):
        return found
    entries = cast("list[object]", found)
    if not entries or any(entry != entries[0] for entry in entries):
        raise fields.error(name, "must be the same for all layers")
    return entries[0]


def granitemoe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch four factors, and mixtures in all layers."""
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_local_experts",),
        count=8,
        chosen=2,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    experts = replace(
        experts, scope="block_sparse_moe", router="router.layer", joined=GRANITE_JOINED
    )
    return replace(switches.granite(fields, config), experts=experts)


def granitemoeshared(fields: ConfigFields, config: LlamaConfig, width: int = 0) -> LlamaConfig:
    """Switch an MLP beside the mixtures, too, of `width` where config.json has none."""
    config = granitemoe(fields, config)
    assert config.experts is not None
    experts = replace(
        config.experts,
        shared=fields.integer("shared_intermediate_size", width, minimum=0) or None,
        shared_gate=False,
        shared_scope="shared_mlp",
        shared_joined=("input_linear", "output_linear"),
    )
    return replace(config, experts=experts)


_MIXER_SETTINGS = (
    *("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
    *("mamba_expand", "mamba_proj_bias", "mamba_conv_bias", "time_step_limit"),
)


def granitemoehybrid(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixers of Mamba 2 in some layers; there may be no experts, and no rotary."""
    layers = config.num_hidden_layers
    state, full = ("mamba", "linear_attention"), ("attention", "full_attention")
    words = fields.choices("layer_types", (*state, *full)) or ("mamba",) * layers
    if len(words) != layers:
        raise fields.error("layer_types", f"must have one word for each of {layers} layers")
    stateful = tuple(layer for layer, word in enumerate(words) if word in state)
    rotated = fields.get("position_embedding_type") == "rope"
    if fields.integer("num_local_experts", 8, minimum=0):
        config = granitemoeshared(fields, config, 1024)
    else:
        fields.without_effect("num_experts_per_tok")
        names = Names(mlp="shared_mlp", gate_up="input_linear", down="output_linear")
        inner = fields.integer("shared_intermediate_size", 1024)
        config = switches.granite(fields, replace(config, intermediate_size=inner))
        config = replace(config, names=names, mlp_bias=False)
    fields.without_effect("mamba_chunk_size", *(() if stateful else _MIXER_SETTINGS))
    return replace(
        config,
        unrotated_layers=() if rotated else tuple(range(layers)),
        mamba=_mixers(fields, config, stateful) if stateful else None,
    )


def _mixers(fields: ConfigFields, config: LlamaConfig, layers: tuple[int, ...]) -> MambaLayers:
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    size = fields.integer("mamba_d_state", 256)
    inner = int(fields.number("mamba_expand", 2) * config.hidden_size)
    if inner % heads or inner % 2 or heads % groups:
        raise fields.error("mamba_n_heads", f"must divide {inner}, and be a multiple of {groups}")
    if fields.get("mamba_d_head", "auto") not in ("auto", inner // heads):
        raise fields.error("mamba_d_head", f"must be {inner // heads}")
    sizes = Sizes(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=len(layers),
        kernel=fields.integer("mamba_d_conv", 4),
        convolved=inner + 2 * groups * size,
        state=inner * size,
        epsilon=config.rms_norm_eps,
        tied=False,
    )
    mixer = Mamba2Config(
        sizes=sizes,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state_size=size,
        limits=time_limits(fields),
        activation=config.hidden_act,
        bias=fields.boolean("mamba_proj_bias", False),
        convolution_bias=fields.boolean("mamba_conv_bias", True),
    )
    return MambaLayers(layers, mixer)


def phimoe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms, biases, and mixtures of two experts by SparseMixer."""
    fields.require("num_experts_per_tok", 2)
    bias = fields.boolean("attention_bias", False)
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_local_experts",),
        count=16,
        chosen=2,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    if experts.count < 2:
        raise fields.error("num_local_experts", "must be at least 2")
    mixer = Routing(mixer=fields.number("router_jitter_noise", 0.01))
    experts = replace(experts, scope="block_sparse_moe", gate="w1", up="w3", down="w2")
    return replace(
        with_biases(config, bias, False),
        norm="layer",
        rope=_short_factor(fields, config.rope),
        head_bias=fields.boolean("lm_head_bias", False),
        experts=replace(experts, routing=mixer),
    )


def _short_factor(fields: ConfigFields, rope: RopeSettings) -> RopeSettings:
    """Return LongRoPE with the factor of cosines that the file has for short texts, for these."""
    given = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not isinstance(rope.scaling, F.LongRopeScaling):
        return rope
    own = ConfigFields(cast("dict[str, object]", given), "phimoe")
    factor = own.number("short_mscale")
    scaling = replace(rope.scaling, attention_factor=factor)
    return replace(rope, scaling=scaling, context=min(rope.context, scaling.original_max_position))


def lfm2_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch short convolutions, and mixtures after the first layers."""
    layers = config.num_hidden_layers
    experts = read_experts(
        fields,
        layers,
        names=("num_experts",),
        count=32,
        chosen=4,
        width="moe_intermediate_size",
        inner=1792,
    )
    dense = fields.integer("num_dense_layers", 2, minimum=0)
    biased = fields.boolean("use_expert_bias", True)
    routing = Routing(
        sigmoid=True,
        scale=fields.number("routed_scaling_factor", 1.0),
        bias="expert_bias" if biased else None,
        least=1e-6,
    )
    experts = replace(
        experts,
        layers=tuple(range(min(dense, layers), layers)),
        normalized=fields.boolean("norm_topk_prob", True),
        routing=routing,
        **{"scope": "feed_forward", "gate": "w1", "up": "w3", "down": "w2"},
    )
    return replace(switches.lfm2_layers(fields, config), experts=experts)


def minimax_m2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch a norm over all heads, a rotated part, and mixtures with biases of experts."""
    experts = read_experts(
        fields,
        config.num_hidden_layers,
        names=("num_local_experts",),
        count=256,
        chosen=8,
        width="intermediate_size",
        inner=config.intermediate_size,
    )
    experts = replace(
        experts,
        routing=Routing(sigmoid=True, bias="e_score_correction_bias", least=0.0),
        **{"scope": "block_sparse_moe", "gate": "w1", "up": "w3", "down": "w2"},
    )
    rope = config.rope
    if fields.get("rotary_dim") is not None:
        rope = replace(rope, rotated=fields.integer("rotary_dim") / config.head_dim)
    return replace(config, head_norm="width", rope=rope, experts=experts)
