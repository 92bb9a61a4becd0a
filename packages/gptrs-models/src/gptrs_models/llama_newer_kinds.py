"""Kinds of the Llama family that came later: for each its switches, and its entry below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gptrs.api.models import ConfigFields
from gptrs_models import llama_moe_switches as moe
from gptrs_models import llama_switches as switches
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_settings import KindDefaults


def _llama3(theta: float, factor: float) -> dict[str, object]:
    """Return the rotary settings of Llama 3 for a `factor` times longer context."""
    return {
        **{"rope_type": "llama3", "rope_theta": theta, "factor": factor},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    }


def _apertus(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch a norm of heads, and an MLP with an activation that was learned, without a gate."""
    fields.require("hidden_act", "xielu")
    names = Names(gate=None, attention_in="attention_layernorm", mlp_in="feedforward_layernorm")
    config = replace(switches.biased(fields, config), mlp_bias=False, head_norm="rms")
    return replace(config, names=names, hidden_act="xielu")


def _cwm(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch windows: those of all layers but each fourth, from the first one on."""
    if fields.get("layer_types") is None:
        sliding = tuple(i for i in range(config.num_hidden_layers) if i % 4)
        config = replace(config, sliding_layers=sliding)
    return replace(config, mlp_bias=fields.boolean("mlp_bias", False))


def _hyperclovax(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch Granite's factors, and norms behind both halves, too."""
    scale = fields.number("attention_multiplier", config.head_dim**-0.5)
    behind = fields.boolean("use_post_norm", True)
    names = Names(attention_out="post_norm1", mlp_out="post_norm2") if behind else config.names
    config = replace(switches.granite(fields, config), attention_scale=scale, names=names)
    return replace(config, logit_scale=fields.number("logits_scaling", 1.0))


def _jais2(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch layer norms, and an MLP without a gate."""
    biases = (fields.boolean(name, True) for name in ("attention_bias", "mlp_bias"))
    return replace(with_biases(config, *biases), names=Names(gate=None), norm="layer")


def _solar_open(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch mixtures as those of GLM-4.5, in all layers."""
    fields.require("first_k_dense_replace", None)
    experts = moe.routed(fields, config, count=128, inner=1280, dense=0, scale=1.0)
    return replace(config, qkv_bias=fields.boolean("attention_bias", False), experts=experts)


def _vaultgemma(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch what Gemma 2 does, but no norms behind the halves."""
    names = Names(mlp_in="pre_feedforward_layernorm")
    return replace(switches.gemma2(fields, config), names=names)


def _youtu(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch latent attention."""
    turned = fields.boolean("rope_interleave", True)
    return replace(switches.latent(fields, config), interleaved=turned)


NEWER: dict[str, tuple[KindDefaults, Callable[[ConfigFields, LlamaConfig], LlamaConfig]]] = {
    "apertus": (
        KindDefaults(
            131072, 14336, 32, None, 65536, epsilon=1e-5, theta=12e6, rope=_llama3(12e6, 8.0),
            own_names={"hidden_act": "mlp_activation"},
        ),
        _apertus,
    ),
    "cwm": (
        KindDefaults(
            128256, 21504, 64, 8, 131072, epsilon=1e-5, head_dim=128, sliding_window=8192,
            hidden_size=6144, heads=48, theta=1e6, rope=_llama3(1e6, 16.0),
        ),
        _cwm,
    ),
    "hyperclovax": (KindDefaults(32000, 11008, 32, None, 2048), _hyperclovax),
    "iquestcoder": (
        KindDefaults(
            76800, 27648, 80, 8, 131072, epsilon=1e-5, head_dim=128, hidden_size=5120, heads=40
        ),
        switches.biased,
    ),
    "jais2": (
        KindDefaults(
            150272, 26624, 32, None, 8192, epsilon=1e-5, hidden_size=3328, heads=26,
            activation="relu2", own_names={"rms_norm_eps": "layer_norm_eps"},
        ),
        _jais2,
    ),
    "solar_open": (
        KindDefaults(
            196608, 10944, 48, 8, 131072, epsilon=1e-5, head_dim=128, heads=64, theta=1e6,
            rotated=1.0, mixture=True,
        ),
        _solar_open,
    ),
    "vaultgemma": (
        KindDefaults(
            256000, 9216, 26, 4, 8192, head_dim=256, sliding_window=4096, hidden_size=2304,
            heads=8, activation="gelu_pytorch_tanh", tied=True, pattern=2,
            own_names={"hidden_act": "hidden_activation"},
        ),
        _vaultgemma,
    ),
    "youtu": (
        KindDefaults(
            128256, 6144, 32, 16, 131072, head_dim=64, hidden_size=2048, heads=16, tied=True
        ),
        _youtu,
    ),
}  # fmt: skip
"""Defaults and switches by `model_type`."""
