"""Kinds of decoders with mixtures of experts or recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.api.models import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models.delta_net import Delta
from gptrs_models.llama_config import LlamaConfig, Names
from gptrs_models.llama_experts import BIAS, Clamp, Experts, Routing, read_experts, sparse_layers
from gptrs_models.llama_settings import Kind
from gptrs_models.llama_switches import (
    Reading,
    Switch,
    Value,
    biases,
    every_layer,
    flag,
    granite,
    grouped,
    hunyuan,
    ignores,
    latent,
    layers_called,
    lfm2,
    needs,
    optional,
    plain,
    qwen3,
    routed_experts,
    switch,
    values_of,
    where,
    windows,
)
from gptrs_models.mamba2 import MambaLayers


def mixture(
    *names: str,
    count: int,
    chosen: int,
    inner: int | None = None,
    chosen_name: str = "num_experts_per_tok",
    **values: Value,
) -> Callable[[ConfigFields, LlamaConfig], Experts]:
    """Return a reader of `Experts`; `values` are further fields, as values or readers.

    The number of experts is under one of `names`; `count` and `chosen` are defaults. The width of
    an expert is `moe_intermediate_size`, by default `inner`, or that of an MLP if `inner` is None.
    """
    width = "intermediate_size" if inner is None else "moe_intermediate_size"

    def read(fields: ConfigFields, config: LlamaConfig) -> Experts:
        experts = read_experts(
            fields,
            config.num_hidden_layers,
            names=names,
            count=count,
            chosen=chosen,
            width=width,
            inner=config.intermediate_size if inner is None else inner,
            chosen_name=chosen_name,
        )
        return replace(experts, **values_of(values, fields, config))

    return read


mixtral_mixture = partial(mixture, scope="block_sparse_moe", gate="w1", up="w3", down="w2")
"""The same with the names of Mixtral's weights."""


def _sparse(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    return sparse_layers(fields, config.num_hidden_layers)


def _qwen2_windows(fields: ConfigFields, config: LlamaConfig) -> range:
    """Return the layers with the window: every second of the first ones."""
    first = fields.integer("max_window_layers", 28, minimum=0)
    return range(0, min(first, config.num_hidden_layers), 2)


def _called_sparse(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    layers = config.num_hidden_layers
    found = layers_called(fields, layers, "mlp_layer_types", "sparse", "dense")
    return tuple(range(layers)) if found is None else found


def _no_layer(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    return ()


def _shared(default: int) -> Reading:
    return lambda fields, _: fields.integer("shared_expert_intermediate_size", default)


def gated(joined: bool) -> Switch:
    """Return a switch of delta nets (projections `joined` or not) and of attention gates."""

    def delta(fields: ConfigFields, config: LlamaConfig) -> Delta | None:
        layers, own = config.num_hidden_layers, ("linear_attention", "full_attention")
        linear = layers_called(fields, layers, "layer_types", *own)
        if linear is None:
            period = fields.integer("full_attention_interval", 4)
            linear = tuple(layer for layer in range(layers) if (layer + 1) % period)
        return Delta.read(fields, linear, joined)

    return switch(
        needs(use_sliding_window=False), **biases("attention_bias"), norm="rms_offset",
        head_norm="rms_offset", attention_gate=True, delta=delta,
    )  # fmt: skip


def routed(
    *,
    count: int | None,
    inner: int,
    dense: int = 0,
    scale: float = 1.0,
    chosen: int = 8,
    normalized: bool = True,
) -> Reading:
    """Return a reader of experts chosen by sigmoid and biases, optionally in groups.

    The arguments are defaults: number of experts, width of one, dense layers, factor of the sum,
    experts per token, and whether their weights add up to 1.
    """

    def read(fields: ConfigFields, config: LlamaConfig) -> Experts:
        experts = routed_experts(
            fields, config, count=count, inner=inner, shared=1, dense=dense, chosen=chosen
        )
        groups, among = fields.integer("n_group", 1), fields.integer("topk_group", 1)
        factor = fields.number("routed_scaling_factor", scale)
        routing = Routing(groups, among, True, factor, BIAS)
        if groups > 1:
            routing = grouped(fields, routing, experts.count)
        own = fields.boolean("norm_topk_prob", normalized)
        return replace(experts, normalized=own, routing=routing)

    return read


def exaone_experts(fields: ConfigFields, config: LlamaConfig) -> Experts:
    """Read mixtures as of DeepSeek-V3 with other names, in the layers that the config names."""
    shared = fields.integer("num_shared_experts", 1, minimum=0)
    own = ConfigFields(fields.overlaid({"n_shared_experts": shared}), "exaone_moe")
    read = routed(count=64, inner=1024, dense=1, scale=2.5)
    experts = cast("Experts", read(own, config))
    assert experts.routing is not None
    routing = replace(experts.routing, bias="e_score_correction_bias")
    sparse = layers_called(fields, config.num_hidden_layers, "mlp_layer_types", "sparse", "dense")
    return replace(experts, routing=routing, layers=experts.layers if sparse is None else sparse)


def _deepseek_v3(fields: ConfigFields, config: LlamaConfig) -> Experts:
    """Read mixtures with a load-balancing bias."""
    groups, chosen = fields.integer("n_group", 8), fields.integer("topk_group", 4)
    scale = fields.number("routed_scaling_factor", 2.5)
    experts = routed_experts(fields, config, count=256, inner=2048, shared=1, dense=3, chosen=8)
    routing = grouped(fields, Routing(groups, chosen, True, scale, BIAS), experts.count)
    normalized = fields.boolean("norm_topk_prob", True)
    return replace(experts, normalized=normalized, routing=routing)


def _deepseek_v2(fields: ConfigFields, config: LlamaConfig) -> Experts:
    """Read mixtures with softmax routing, optionally in groups."""
    method = fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    groups, chosen = 1, 1
    if method != "greedy":
        groups, chosen = fields.integer("n_group"), fields.integer("topk_group")
    scale = fields.number("routed_scaling_factor", 1.0)
    experts = routed_experts(fields, config, count=64, inner=1407, shared=2, dense=0, chosen=None)
    routing = grouped(fields, Routing(groups, chosen, False, scale), experts.count)
    bias = fields.boolean("mlp_bias", False)
    return replace(experts, normalized=False, routing=routing, shared_bias=bias)


def _glm4_moe_lite(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch on latent attention, and mixtures as in DeepSeek-V3 after the first layer."""
    own = fields.overlaid({}, {"q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192})
    read = switch(experts=routed(count=64, inner=1536, dense=1, scale=1.8, chosen=4))
    config = latent(ConfigFields(own, "glm4_moe_lite"), read(fields, config))
    layers = config.num_hidden_layers
    sparse = layers_called(fields, layers, "mlp_layer_types", "sparse", "dense")
    assert config.experts is not None
    experts = config.experts if sparse is None else replace(config.experts, layers=sparse)
    return replace(config, experts=experts)


def _ernie4_5_moe(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch the layers with a mixture, and the width of the shared expert."""
    experts, layers = config.experts, config.num_hidden_layers
    assert experts is not None
    first = fields.integer("moe_layer_start_index", 1, minimum=0)
    last = fields.integer("moe_layer_end_index", -1, minimum=-1)
    step = fields.integer("moe_layer_interval", 1)
    among = range(first, layers if last == -1 else min(last + 1, layers))
    shared = fields.integer("moe_num_shared_experts", 2, minimum=0) * experts.width
    mixed = tuple(layer for layer in among if (layer + 1) % step == 0)
    return replace(config, experts=replace(experts, layers=mixed, shared=shared or None))


def _hunyuan_experts(fields: ConfigFields, config: LlamaConfig) -> Experts:
    alike = {name: _alike(fields, name) for name in ("num_experts", "moe_topk")}
    read = mixture(
        "num_experts", count=1, chosen=1, chosen_name="moe_topk", router="gate.wg",
        shared=config.intermediate_size, shared_gate=False, shared_scope="mlp.shared_mlp",
    )  # fmt: skip
    return read(ConfigFields(fields.overlaid(alike), "hunyuan_v1_moe"), config)


def _alike(fields: ConfigFields, name: str) -> object:
    """Return a number, or the common number of a list with one entry per layer."""
    found = fields.get(name, 1)
    if not isinstance(found, list):
        return found
    entries = cast("list[object]", found)
    if not entries or any(entry != entries[0] for entry in entries):
        raise fields.error(name, "must be the same for all layers")
    return entries[0]


granitemoe = switch(
    granite,
    experts=mixture(
        "num_local_experts", count=8, chosen=2, scope="block_sparse_moe", router="router.layer",
        joined=("input_linear.weight", "output_linear.weight"),
    ),
)  # fmt: skip
"""Granite's four factors, and mixtures in all layers."""


def granitemoeshared(fields: ConfigFields, config: LlamaConfig, width: int = 0) -> LlamaConfig:
    """Also switch on an MLP beside the mixtures, of `width` if config.json has none."""
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


def _granitemoehybrid(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch on Mamba 2 mixers in some layers; experts and rotary embeddings are optional."""
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
        if fields.boolean("shared_mlp_parted", False):  # as in GGUF files
            names = Names(mlp="shared_mlp")
        inner = fields.integer("shared_intermediate_size", 1024)
        config = granite(fields, replace(config, intermediate_size=inner))
        config = replace(config, names=names, mlp_bias=False)
    fields.without_effect("mamba_chunk_size", *(() if stateful else _MIXER_SETTINGS))
    mamba = None
    if stateful:
        sizes = config.vocab_size, config.hidden_size, config.rms_norm_eps
        mamba = MambaLayers.read(fields, stateful, *sizes, config.hidden_act)
    return replace(
        config,
        unrotated_layers=() if rotated else tuple(range(layers)),
        mamba=mamba,
    )


def _phimoe(fields: ConfigFields, config: LlamaConfig) -> Experts:
    read = mixtral_mixture(
        "num_local_experts", count=16, chosen=2,
        routing=Routing(mixer=fields.number("router_jitter_noise", 0.01)),
    )  # fmt: skip
    experts = read(fields, config)
    if experts.count < 2:
        raise fields.error("num_local_experts", "must be at least 2")
    return experts


def _short_factor(fields: ConfigFields, config: LlamaConfig) -> RopeSettings:
    """Return LongRoPE with the cosine factor that the file has for short texts."""
    rope = config.rope
    given = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not isinstance(rope.scaling, F.LongRopeScaling):
        return rope
    own = ConfigFields(cast("dict[str, object]", given), "phimoe")
    factor = own.number("short_mscale")
    scaling = replace(rope.scaling, attention_factor=factor)
    return replace(rope, scaling=scaling, context=min(rope.context, scaling.original_max_position))


def _lfm2_layers(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    layers = config.num_hidden_layers
    dense = fields.integer("num_dense_layers", 2, minimum=0)
    return tuple(range(min(dense, layers), layers))


def _lfm2_routing(fields: ConfigFields, _: LlamaConfig) -> Routing:
    biased = fields.boolean("use_expert_bias", True)
    scale = fields.number("routed_scaling_factor", 1.0)
    bias = "expert_bias" if biased else None
    return Routing(sigmoid=True, scale=scale, bias=bias, least=1e-6)


def _minimax_rope(fields: ConfigFields, config: LlamaConfig) -> RopeSettings:
    if fields.get("rotary_dim") is None:
        return config.rope
    return replace(config.rope, rotated=fields.integer("rotary_dim") / config.head_dim)


def _clamp(fields: ConfigFields, _: LlamaConfig) -> Clamp:
    return Clamp(fields.number("swiglu_limit", 7.0), fields.number("swiglu_alpha", 1.702))


GPT_OSS_ROPE: dict[str, object] = {
    **{"rope_type": "yarn", "factor": 32.0},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "original_max_position_embeddings": 4096,
}
"""Defaults of transformers for a `gpt_oss` model without a scaling, whatever its `rope_theta`."""

MOE_KINDS: dict[str, Kind] = {
    "mixtral": Kind(
        32000, 14336, 32, 8, 131072,
        switch(
            plain,
            experts=mixtral_mixture("num_local_experts", "num_experts", count=8, chosen=2),
        ),
        epsilon=1e-5, theta=1e6, mixture=True,
    ),
    "qwen2_moe": Kind(
        151936, 5632, 24, 16, 32768,
        switch(
            qkv_bias=flag("qkv_bias", True), sliding_layers=windows(_qwen2_windows),
            experts=mixture(
                "num_experts", count=60, chosen=4, inner=1408, shared=_shared(5632),
                layers=_sparse, normalized=flag("norm_topk_prob"),
            ),
        ),
        sliding_window=4096, hidden_size=2048, heads=16, mixture=True,
    ),
    "qwen3_moe": Kind(
        151936, 6144, 24, 4, 32768,
        switch(
            qwen3, sliding_layers=windows(every_layer),
            experts=mixture(
                "num_local_experts", "num_experts", count=128, chosen=8, inner=768,
                layers=_sparse, normalized=flag("norm_topk_prob"),
            ),
        ),
        sliding_window=4096, hidden_size=2048, mixture=True,
    ),
    "mellum": Kind(
        98304, 7168, 28, 4, 131072,
        switch(
            qwen3, sliding_layers=windows(_no_layer),
            experts=mixture(
                "num_local_experts", "num_experts", count=64, chosen=8, inner=896,
                layers=_called_sparse, normalized=flag("norm_topk_prob", True),
            ),
        ),
        head_dim=128, sliding_window=1024, hidden_size=2304, theta=5e5, sliding_theta=1e4,
        mixture=True,
    ),
    "qwen3_next": Kind(
        151936, 5632, 48, 2, 32768,
        switch(
            gated(joined=True),
            experts=mixture(
                "num_experts", count=512, chosen=10, inner=512, shared=_shared(512),
                layers=_sparse, normalized=flag("norm_topk_prob", True),
            ),
        ),
        head_dim=256, hidden_size=2048, heads=16, rotated=0.25, mixture=True, reads_types=True,
    ),
    "qwen3_5_text": Kind(
        248320, 12288, 32, 4, 32768, gated(joined=False), head_dim=256, heads=16, rotated=0.25,
        reads_types=True,
    ),
    "qwen3_5_moe_text": Kind(
        248320, 5632, 40, 2, 32768,
        switch(
            ignores("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"),
            gated(joined=False),
            experts=mixture(
                "num_experts", "num_local_experts", count=256, chosen=8, inner=512,
                shared=_shared(512),
            ),
        ),
        head_dim=256, hidden_size=2048, heads=16, rotated=0.25, mixture=True, reads_types=True,
    ),
    "gpt_oss": Kind(
        201088, 2880, 36, 8, 131072,
        switch(
            **biases("attention_bias", True), sinks=True,
            experts=mixture(
                "num_local_experts", "num_experts", count=128, chosen=4, clamp=_clamp,
                router="router",
            ),
        ),
        epsilon=1e-5, head_dim=64, sliding_window=128, hidden_size=2880, heads=64, theta=150000.0,
        pattern=2, rope=GPT_OSS_ROPE, mixture=True,
    ),
    "deepseek_v2": Kind(
        102400, 11008, 32, None, 2048,
        switch(
            needs(scoring_func="softmax", norm_topk_prob=False), latent,
            experts=_deepseek_v2, interleaved=True, mlp_bias=flag("mlp_bias"),
        ),
        head_dim=64, mixture=True,
    ),
    "deepseek_v3": Kind(
        129280, 18432, 61, 128, 4096,
        switch(
            needs(scoring_func="sigmoid", topk_method="noaux_tc"), latent,
            experts=_deepseek_v3, interleaved=flag("rope_interleave", True),
        ),
        head_dim=64, hidden_size=7168, heads=128, mixture=True,
    ),
    "olmoe": Kind(
        50304, 2048, 16, None, 4096,
        switch(
            **biases("attention_bias"), head_norm="width", qkv_clip=optional("clip_qkv"),
            experts=mixture(
                "num_experts", "num_local_experts", count=64, chosen=8,
                normalized=flag("norm_topk_prob"),
            ),
        ),
        epsilon=1e-5, hidden_size=2048, heads=16, mixture=True,
    ),
    "glm4_moe": Kind(
        151552, 10944, 46, 8, 131072,
        switch(
            qkv_bias=flag("attention_bias"), head_norm=where("use_qk_norm", False, "rms"),
            experts=routed(count=128, inner=1408, dense=1),
        ),
        epsilon=1e-5, heads=96, rotated=0.5, mixture=True,
    ),
    "glm4_moe_lite": Kind(
        154880, 10240, 47, 20, 202752,
        switch(_glm4_moe_lite, interleaved=flag("rope_interleave", True)),
        epsilon=1e-5, head_dim=64, hidden_size=2048, heads=20, mixture=True,
    ),
    "dots1": Kind(
        152064, 10944, 62, 32, 2048,
        switch(qwen3, experts=routed(count=None, inner=1408, normalized=False)),
        sliding_window=4096, hidden_size=4608, mixture=True,
    ),
    "solar_open": Kind(
        196608, 10944, 48, 8, 131072,
        switch(
            needs(first_k_dense_replace=None), qkv_bias=flag("attention_bias"),
            experts=routed(count=128, inner=1280),
        ),
        epsilon=1e-5, head_dim=128, heads=64, theta=1e6, rotated=1.0, mixture=True,
    ),
    "ernie4_5_moe": Kind(
        103424, 12288, 28, 4, 131072,
        switch(
            switch(
                needs(use_bias=False, moe_norm_min=1e-12), interleaved=True,
                experts=mixture(
                    "moe_num_experts", "num_experts", count=64, chosen=6, chosen_name="moe_k",
                    inner=1536, shared_gate=False,
                    routing=Routing(bias="moe_statics.e_score_correction_bias", least=0.0),
                ),
            ),
            _ernie4_5_moe,
        ),
        epsilon=1e-5, hidden_size=2560, heads=20, theta=5e5, tied=True, mixture=True,
    ),
    "hunyuan_v1_moe": Kind(
        290943, 11008, 32, None, 2048, switch(hunyuan, experts=_hunyuan_experts), epsilon=1e-5,
        mixture=True,
    ),
    "granitemoe": Kind(32000, 11008, 32, None, 2048, granitemoe, mixture=True),
    "granitemoeshared": Kind(32000, 11008, 32, None, 2048, granitemoeshared, mixture=True),
    "granitemoehybrid": Kind(
        32000, 11008, 32, None, 2048, _granitemoehybrid, mixture=True, reads_types=True
    ),
    "phimoe": Kind(
        32064, 6400, 32, 8, 131072,
        switch(
            needs(num_experts_per_tok=2), **biases("attention_bias"), norm="layer",
            rope=_short_factor, head_bias=flag("lm_head_bias"), experts=_phimoe,
        ),
        epsilon=1e-5, theta=1e6, mixture=True,
    ),
    "lfm2_moe": Kind(
        65536, 7168, 32, 8, 128000,
        switch(
            lfm2,
            experts=mixtral_mixture(
                "num_experts", count=32, chosen=4, inner=1792, layers=_lfm2_layers,
                normalized=flag("norm_topk_prob", True), routing=_lfm2_routing,
                scope="feed_forward",
            ),
        ),
        epsilon=1e-5, hidden_size=2048, theta=1e6, tied=True, mixture=True, reads_types=True,
        own_names={"rms_norm_eps": "norm_eps"},
    ),
    "minimax_m2": Kind(
        200064, 1536, 62, 8, 196608,
        switch(
            head_norm="width", rope=_minimax_rope,
            experts=mixtral_mixture(
                "num_local_experts", count=256, chosen=8,
                routing=Routing(sigmoid=True, bias="e_score_correction_bias", least=0.0),
            ),
        ),
        head_dim=128, hidden_size=3072, heads=48, theta=5e6, rotated=1.0, mixture=True,
    ),
}  # fmt: skip
"""The kinds by their `model_type`."""
