"""The kinds of the Llama family by `model_type`: their switches and defaults.

Kinds close to Llama are listed here, others in `llama_gpt_kinds` and `llama_moe_kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.api.models import ConfigFields
from gptrs_models.llama_config import LlamaConfig, Names
from gptrs_models.llama_gpt_kinds import GPT_KINDS, LAYER_EPSILON, TRANSFORMER
from gptrs_models.llama_moe_kinds import MOE_KINDS, exaone_experts, mixture
from gptrs_models.llama_settings import Kind
from gptrs_models.llama_switches import (
    biased,
    biases,
    flag,
    full_layers,
    granite,
    hunyuan,
    latent,
    lfm2,
    limit,
    needs,
    number,
    optional,
    plain,
    qwen3,
    root_of_width,
    switch,
    where,
    windows,
)


def read_config(settings: Mapping[str, object]) -> LlamaConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported.

    `pretraining_tp` is ignored, since it only splits the same sums; so are dropouts.
    """
    name = str(settings.get("model_type"))
    return KINDS[name].read(ConfigFields(settings, name), name)


NORMS_AFTER = Names(
    attention_in=None, attention_out="post_attention_layernorm",
    mlp_in=None, mlp_out="post_feedforward_layernorm",
)  # fmt: skip
"""Norms after both halves only (OLMo 2)."""
UNGATED = Names(gate=None)

_gemma = switch(
    needs(use_bidirectional_attention=False), **biases("attention_bias"), norm="rms_offset",
    embedding_scale=root_of_width,
)  # fmt: skip
"""Norms and embeddings: `1 + weight`, `sqrt(C) * x`."""
_four_norms = switch(
    _gemma,
    names=Names(
        attention_out="post_attention_layernorm", mlp_in="pre_feedforward_layernorm",
        mlp_out="post_feedforward_layernorm",
    ),
    attention_scale=lambda fields, _: fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
)  # fmt: skip
"""Norms before and after both halves."""
_gemma2 = switch(
    _four_norms, softcap=limit("attn_logit_softcapping", 50.0),
    logit_softcap=limit("final_logit_softcapping", 30.0),
)  # fmt: skip
"""The same with soft caps of scores and logits."""
_olmo2 = switch(biased, names=NORMS_AFTER, head_norm="width", mlp_bias=False)
"""Norms after both halves, and one over all heads."""
_glm = switch(
    names=Names(gate_up="gate_up_proj"), interleaved=True, qkv_bias=flag("attention_bias", True)
)
"""Interleaved rotary embedding and a fused gate and up projection."""


def _gemma_activation(_: ConfigFields, config: LlamaConfig) -> str:
    # Old files say `gelu` but mean its tanh approximation.
    return "gelu_pytorch_tanh" if config.hidden_act == "gelu" else config.hidden_act


def _smollm3(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the layers without a rotary embedding."""
    layers = config.num_hidden_layers
    interval = fields.integer("no_rope_layer_interval", 4)
    default = [int((layer + 1) % interval != 0) for layer in range(layers)]
    rotates = fields.integers("no_rope_layers", default, minimum=0)
    if len(rotates) != layers:
        raise fields.error("no_rope_layers", f"must have one number for each of {layers} layers")
    return tuple(layer for layer, rotated in enumerate(rotates) if not rotated)


def _adjusted_width(fields: ConfigFields, config: LlamaConfig) -> int:
    """Return the width of the MLPs of LFM2, by the rule of Llama."""
    inner = fields.integer("block_ff_dim", config.intermediate_size)
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    if fields.settings.get("block_ffn_dim_multiplier", 1.0) is None:
        return inner
    multiple = fields.integer("block_multiple_of", 256)
    inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * inner)
    return -(-inner // multiple) * multiple


def _cwm(_: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the layers with the window: all except every fourth, starting with the first."""
    return tuple(layer for layer in range(config.num_hidden_layers) if layer % 4)


def _exaone4(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the layers without rotary embedding: those without the window, if there is one."""
    return () if config.sliding_window is None else full_layers(fields, config)


def _head_scale(fields: ConfigFields, config: LlamaConfig) -> float:
    return fields.number("attention_multiplier", config.head_dim**-0.5)


def _llama3(theta: float, factor: float) -> dict[str, object]:
    """Return the rotary settings of Llama 3 for a `factor` times longer context."""
    return {
        **{"rope_type": "llama3", "rope_theta": theta, "factor": factor},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    }


MINISTRAL3_ROPE: dict[str, object] = {
    **{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    "original_max_position_embeddings": 16384,
}
"""Defaults of transformers for a `ministral3` model without rope settings."""
GEMMA_NAMES = {"hidden_act": "hidden_activation"}

KINDS: dict[str, Kind] = {
    "llama": Kind(32000, 11008, 32, None, 2048),
    "mistral": Kind(32000, 14336, 32, 8, 131072, plain, sliding_window=4096),
    "ministral": Kind(32000, 14336, 32, 8, 131072, plain, sliding_window=4096),
    "ministral3": Kind(
        131072, 14336, 34, 8, 262144, plain, epsilon=1e-5, head_dim=128, rope=MINISTRAL3_ROPE
    ),
    "qwen2": Kind(
        151936, 22016, 32, 32, 32768, switch(plain, qkv_bias=True), sliding_window=4096
    ),
    "qwen3": Kind(151936, 22016, 32, 32, 32768, qwen3, head_dim=128, sliding_window=4096),
    "gemma": Kind(
        256000, 24576, 28, 16, 8192, switch(_gemma, hidden_act=_gemma_activation), head_dim=256,
        hidden_size=3072, heads=16, activation="gelu_pytorch_tanh", tied=True,
    ),
    "gemma2": Kind(
        256000, 9216, 26, 4, 8192, _gemma2, head_dim=256, sliding_window=4096, hidden_size=2304,
        heads=8, activation="gelu_pytorch_tanh", tied=True, pattern=2, own_names=GEMMA_NAMES,
    ),
    "gemma3_text": Kind(
        262208, 9216, 26, 4, 131072,
        # As in transformers, whose layers do not read `attn_logit_softcapping`.
        switch(
            _four_norms, head_norm="rms_offset",
            logit_softcap=limit("final_logit_softcapping", None),
        ),
        head_dim=256, sliding_window=4096, hidden_size=2304, heads=8, theta=1e6,
        activation="gelu_pytorch_tanh", tied=True, pattern=6, sliding_theta=1e4,
        own_names=GEMMA_NAMES,
    ),
    "vaultgemma": Kind(
        256000, 9216, 26, 4, 8192, switch(_gemma2, names=Names(mlp_in="pre_feedforward_layernorm")),
        head_dim=256, sliding_window=4096, hidden_size=2304, heads=8,
        activation="gelu_pytorch_tanh", tied=True, pattern=2, own_names=GEMMA_NAMES,
    ),
    "phi3": Kind(
        32064, 8192, 32, None, 4096,
        switch(plain, names=Names(qkv="qkv_proj", gate_up="gate_up_proj")),
        epsilon=1e-5, hidden_size=3072, rotated=1.0,
    ),
    "smollm3": Kind(
        128256, 11008, 36, 4, 32768,
        switch(
            **biases("attention_bias"), mlp_bias=flag("mlp_bias"), unrotated_layers=_smollm3,
            sliding_layers=windows(_smollm3),
        ),
        hidden_size=2048, heads=16, theta=2e6, tied=True,
    ),
    "olmo": Kind(
        50304, 11008, 32, None, 2048,
        switch(
            biased, norm="layer_plain", rms_norm_eps=1e-5, qkv_clip=optional("clip_qkv"),
            mlp_bias=False,
        ),
    ),
    "olmo2": Kind(50304, 11008, 32, None, 2048, _olmo2, epsilon=1e-5),
    "olmo3": Kind(
        50304, 11008, 32, None, 2048, _olmo2, epsilon=1e-5, sliding_window=4096, theta=5e5,
        pattern=4, sliding_theta=5e5,
    ),
    "granite": Kind(32000, 11008, 32, None, 2048, granite),
    "hyperclovax": Kind(
        32000, 11008, 32, None, 2048,
        switch(
            granite, attention_scale=_head_scale, logit_scale=number("logits_scaling", 1.0),
            names=where(
                "use_post_norm", True, Names(attention_out="post_norm1", mlp_out="post_norm2"),
                Names(),
            ),
        ),
    ),
    "starcoder2": Kind(
        49152, 12288, 30, 2, 4096,
        switch(
            **biases("use_bias", True, mlp=True), norm="layer",
            names=Names(gate=None, up="c_fc", down="c_proj"),
        ),
        epsilon=1e-5, hidden_size=3072, heads=24, activation="gelu_pytorch_tanh", tied=True,
        own_names={"rms_norm_eps": "norm_epsilon"},
    ),
    "exaone4": Kind(
        102400, 16384, 32, 32, 2048,
        switch(names=NORMS_AFTER, head_norm="rms", unrotated_layers=_exaone4),
        epsilon=1e-5, sliding_window=4096, pattern=4,
    ),
    "exaone": Kind(
        102400, 14336, 32, 8, 4096,
        switch(
            biased,
            names=Names(
                **TRANSFORMER, embed="wte", attention="attn.attention", output="out_proj",
                gate="c_fc_0", up="c_fc_1", down="c_proj", attention_in="ln_1", mlp_in="ln_2",
            ),
        ),
        epsilon=1e-5, theta=5e5,
        older_names={
            "num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
    ),
    "exaone_moe": Kind(
        102400, 16384, 32, 32, 2048,
        switch(head_norm="rms", unrotated_layers=_exaone4, experts=exaone_experts),
        epsilon=1e-5, sliding_window=4096, pattern=4, mixture=True,
    ),
    "flex_olmo": Kind(
        100352, 11008, 32, None, 4096,
        switch(
            _olmo2,
            experts=mixture(
                "num_experts", count=7, chosen=5, normalized=flag("norm_topk_prob")
            ),
        ),
        theta=5e5, mixture=True,
    ),
    "glm": Kind(
        151552, 13696, 40, 2, 131072, _glm, epsilon=0.00000015625, head_dim=128, rotated=0.5
    ),
    "glm4": Kind(
        151552, 13696, 40, 2, 131072,
        switch(
            _glm,
            names=Names(
                gate_up="gate_up_proj", attention_out="post_self_attn_layernorm",
                mlp_out="post_mlp_layernorm",
            ),
        ),
        epsilon=0.00000015625, head_dim=128, rotated=0.5,
    ),
    "seed_oss": Kind(
        155136, 27648, 64, 8, 524288,
        switch(
            qkv_bias=flag("attention_bias", True), output_bias=flag("attention_out_bias"),
            mlp_bias=flag("mlp_bias"),
        ),
        head_dim=128, heads=80,
    ),
    "internlm3": Kind(
        128512, 10240, 48, 2, 32768,
        switch(qkv_bias=flag("qkv_bias"), output_bias=flag("bias"), mlp_bias=flag("bias")),
        epsilon=1e-5, head_dim=128,
    ),
    "arcee": Kind(
        32000, 18432, 32, None, 4096, switch(biased, names=UNGATED), epsilon=1e-5,
        hidden_size=2560, activation="relu2",
    ),
    "helium": Kind(
        48000, 7040, 24, 20, 4096, switch(biased, output_bias=False, interleaved=True),
        epsilon=1e-8, head_dim=128, hidden_size=2560, heads=20, theta=1e5,
    ),
    "ernie4_5": Kind(
        103424, 3072, 18, 2, 131072, switch(**biases("use_bias", mlp=True), interleaved=True),
        epsilon=1e-5, head_dim=128, hidden_size=1024, heads=16, theta=5e5, tied=True,
    ),
    "nemotron": Kind(
        256000, 24576, 32, None, 4096, switch(biased, names=UNGATED, norm="layer_offset"),
        epsilon=1e-5, head_dim=128, hidden_size=6144, heads=48, rotated=0.5, activation="relu2",
        own_names={"rms_norm_eps": "norm_eps"},
    ),
    "hunyuan_v1_dense": Kind(290943, 11008, 32, None, 2048, hunyuan, epsilon=1e-5),
    "lfm2": Kind(
        65536, 12288, 32, 8, 128000, switch(lfm2, intermediate_size=_adjusted_width),
        epsilon=1e-5, hidden_size=2560, theta=1e6, tied=True, reads_types=True,
        own_names={"rms_norm_eps": "norm_eps"},
    ),
    "apertus": Kind(
        131072, 14336, 32, None, 65536,
        switch(
            biased, needs(hidden_act="xielu"), hidden_act="xielu", mlp_bias=False,
            head_norm="rms",
            names=Names(
                gate=None, attention_in="attention_layernorm", mlp_in="feedforward_layernorm"
            ),
        ),
        epsilon=1e-5, theta=12e6, rope=_llama3(12e6, 8.0),
        own_names={"hidden_act": "mlp_activation"},
    ),
    "cwm": Kind(
        128256, 21504, 64, 8, 131072,
        switch(sliding_layers=windows(_cwm), mlp_bias=flag("mlp_bias")),
        epsilon=1e-5, head_dim=128, sliding_window=8192, hidden_size=6144, heads=48, theta=1e6,
        rope=_llama3(1e6, 16.0),
    ),
    "iquestcoder": Kind(
        76800, 27648, 80, 8, 131072, epsilon=1e-5, head_dim=128, hidden_size=5120, heads=40
    ),
    "jais2": Kind(
        150272, 26624, 32, None, 8192,
        switch(
            **biases("attention_bias", True), mlp_bias=flag("mlp_bias", True), names=UNGATED,
            norm="layer",
        ),
        epsilon=1e-5, hidden_size=3328, heads=26, activation="relu2", own_names=LAYER_EPSILON,
    ),
    "youtu": Kind(
        128256, 6144, 32, 16, 131072, switch(latent, interleaved=flag("rope_interleave", True)),
        head_dim=64, hidden_size=2048, heads=16, tied=True,
    ),
    **GPT_KINDS,
    **MOE_KINDS,
}  # fmt: skip
"""The kinds by their `model_type`."""
