"""The kinds of the Llama family by `model_type`: their defaults and switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gptrs.api.models import ConfigFields
from gptrs_models import llama_gpt_switches as gpt
from gptrs_models import llama_moe_switches as moe
from gptrs_models import llama_switches as switches
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_newer_kinds import NEWER
from gptrs_models.llama_settings import KindDefaults, read_shared


@dataclass(frozen=True)
class Kind:
    """A kind: defaults for what config.json lacks, and what it switches."""

    defaults: KindDefaults
    switches: Callable[[ConfigFields, LlamaConfig], LlamaConfig] = switches.biased


def read_config(settings: Mapping[str, object]) -> LlamaConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported.

    `pretraining_tp` plays no part: it splits the same sums. Dropouts are for training.
    """
    name = str(settings.get("model_type"))
    kind = KINDS[name]
    fields = ConfigFields(settings, name)
    return kind.switches(fields, read_shared(fields, name, kind.defaults))


MINISTRAL3_ROPE: dict[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Defaults of transformers for a `ministral3` model without rope settings."""

GPT_OSS_ROPE: dict[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Defaults of transformers for a `gpt_oss` model without rope settings."""

LAYER_EPSILON = {"rms_norm_eps": "layer_norm_eps"}
GEMMA_NAMES = {"hidden_act": "hidden_activation"}
GPTJ_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}

GPT_NEO_NAMES = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}

BLOOM_NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}

MPT_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}

NEOX_NAMES = {
    **LAYER_EPSILON,
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_pct",
}

XGLM_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
    "hidden_act": "activation_function",
}

FALCON_NAMES = {"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation"}

REFINED_WEB = Kind(
    KindDefaults(
        250880, 256, 2, None, 2048, epsilon=1e-5, hidden_size=64, heads=8, activation="gelu",
        tied=True,
        own_names={**FALCON_NAMES, "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    ),
    gpt.refined_web,
)  # fmt: skip
"""Falcon before transformers had it."""

KINDS: dict[str, Kind] = {
    "llama": Kind(KindDefaults(32000, 11008, 32, None, 2048)),
    "mistral": Kind(
        KindDefaults(32000, 14336, 32, 8, 131072, sliding_window=4096), switches.plain
    ),
    "ministral": Kind(
        KindDefaults(32000, 14336, 32, 8, 131072, sliding_window=4096), switches.plain
    ),
    "ministral3": Kind(
        KindDefaults(
            131072, 14336, 34, 8, 262144, epsilon=1e-5, head_dim=128, rope=MINISTRAL3_ROPE
        ),
        switches.plain,
    ),
    "qwen2": Kind(
        KindDefaults(151936, 22016, 32, 32, 32768, sliding_window=4096), switches.qwen2
    ),
    "qwen3": Kind(
        KindDefaults(151936, 22016, 32, 32, 32768, head_dim=128, sliding_window=4096),
        switches.qwen3,
    ),
    "gemma": Kind(
        KindDefaults(
            256000, 24576, 28, 16, 8192, head_dim=256, hidden_size=3072, heads=16,
            activation="gelu_pytorch_tanh", tied=True,
        ),
        switches.gemma,
    ),
    "gemma2": Kind(
        KindDefaults(
            256000, 9216, 26, 4, 8192, head_dim=256, sliding_window=4096, hidden_size=2304,
            heads=8, activation="gelu_pytorch_tanh", tied=True, pattern=2, own_names=GEMMA_NAMES,
        ),
        switches.gemma2,
    ),
    "gemma3_text": Kind(
        KindDefaults(
            262208, 9216, 26, 4, 131072, head_dim=256, sliding_window=4096, hidden_size=2304,
            heads=8, theta=1e6, activation="gelu_pytorch_tanh", tied=True, pattern=6,
            sliding_theta=1e4, own_names=GEMMA_NAMES,
        ),
        switches.gemma3,
    ),
    "phi": Kind(
        KindDefaults(
            51200, 8192, 24, None, 2048, epsilon=1e-5, hidden_size=2048, rotated=0.5,
            activation="gelu_new", own_names=LAYER_EPSILON,
        ),
        gpt.phi,
    ),
    "phi3": Kind(
        KindDefaults(32064, 8192, 32, None, 4096, epsilon=1e-5, hidden_size=3072, rotated=1.0),
        switches.phi3,
    ),
    "smollm3": Kind(
        KindDefaults(
            128256, 11008, 36, 4, 32768, hidden_size=2048, heads=16, theta=2e6, tied=True
        ),
        switches.smollm3,
    ),
    "olmo": Kind(KindDefaults(50304, 11008, 32, None, 2048), switches.olmo),
    "olmo2": Kind(KindDefaults(50304, 11008, 32, None, 2048, epsilon=1e-5), switches.olmo2),
    "olmo3": Kind(
        KindDefaults(
            50304, 11008, 32, None, 2048, epsilon=1e-5, sliding_window=4096, theta=5e5,
            pattern=4, sliding_theta=5e5,
        ),
        switches.olmo2,
    ),
    "granite": Kind(KindDefaults(32000, 11008, 32, None, 2048), switches.granite),
    "starcoder2": Kind(
        KindDefaults(
            49152, 12288, 30, 2, 4096, epsilon=1e-5, hidden_size=3072, heads=24,
            activation="gelu_pytorch_tanh", tied=True, own_names={"rms_norm_eps": "norm_epsilon"},
        ),
        switches.starcoder2,
    ),
    "stablelm": Kind(
        KindDefaults(
            50304, 6912, 32, 32, 4096, epsilon=1e-5, hidden_size=2560, rotated=0.25,
            own_names=LAYER_EPSILON,
        ),
        gpt.stablelm,
    ),
    "cohere": Kind(
        KindDefaults(
            256000, 22528, 40, None, 8192, epsilon=1e-5, hidden_size=8192, heads=64, theta=5e5,
            tied=True, own_names=LAYER_EPSILON,
        ),
        gpt.cohere,
    ),
    "cohere2": Kind(
        KindDefaults(
            256000, 22528, 40, None, 8192, epsilon=1e-5, sliding_window=4096, hidden_size=8192,
            heads=64, tied=True, pattern=4, own_names=LAYER_EPSILON,
        ),
        gpt.cohere2,
    ),
    "exaone4": Kind(
        KindDefaults(
            102400, 16384, 32, 32, 2048, epsilon=1e-5, sliding_window=4096, pattern=4
        ),
        switches.exaone4,
    ),
    "glm": Kind(
        KindDefaults(
            151552, 13696, 40, 2, 131072, epsilon=0.00000015625, head_dim=128, rotated=0.5
        ),
        switches.glm,
    ),
    "glm4": Kind(
        KindDefaults(
            151552, 13696, 40, 2, 131072, epsilon=0.00000015625, head_dim=128, rotated=0.5
        ),
        switches.glm4,
    ),
    "seed_oss": Kind(
        KindDefaults(155136, 27648, 64, 8, 524288, head_dim=128, heads=80), switches.seed_oss
    ),
    "internlm3": Kind(
        KindDefaults(128512, 10240, 48, 2, 32768, head_dim=128), switches.internlm3
    ),
    "arcee": Kind(
        KindDefaults(
            32000, 18432, 32, None, 4096, epsilon=1e-5, hidden_size=2560, activation="relu2"
        ),
        switches.arcee,
    ),
    "helium": Kind(
        KindDefaults(
            48000, 7040, 24, 20, 4096, epsilon=1e-8, head_dim=128, hidden_size=2560, heads=20,
            theta=1e5,
        ),
        switches.helium,
    ),
    "ernie4_5": Kind(
        KindDefaults(
            103424, 3072, 18, 2, 131072, epsilon=1e-5, head_dim=128, hidden_size=1024, heads=16,
            theta=5e5, tied=True,
        ),
        switches.ernie,
    ),
    "nemotron": Kind(
        KindDefaults(
            256000, 24576, 32, None, 4096, epsilon=1e-5, head_dim=128, hidden_size=6144, heads=48,
            rotated=0.5, activation="relu2", own_names={"rms_norm_eps": "norm_eps"},
        ),
        switches.nemotron,
    ),
    "hunyuan_v1_dense": Kind(
        KindDefaults(290943, 11008, 32, None, 2048, epsilon=1e-5), switches.hunyuan
    ),
    "gpt_neox": Kind(
        KindDefaults(
            50432, 24576, 44, None, 2048, epsilon=1e-5, hidden_size=6144, heads=64, rotated=0.25,
            activation="gelu", own_names=NEOX_NAMES,
        ),
        gpt.gpt_neox,
    ),
    "gptj": Kind(
        KindDefaults(
            50400, 16384, 28, None, 2048, epsilon=1e-5, heads=16, activation="gelu_new",
            own_names=GPTJ_NAMES,
        ),
        gpt.gptj,
    ),
    "codegen": Kind(
        KindDefaults(
            50400, 16384, 28, None, 2048, epsilon=1e-5, heads=16, activation="gelu_new",
            own_names=GPTJ_NAMES,
        ),
        gpt.codegen,
    ),
    "falcon": Kind(
        KindDefaults(
            65024, 18176, 32, None, 2048, epsilon=1e-5, hidden_size=4544, heads=71,
            activation="gelu", tied=True, own_names=FALCON_NAMES,
        ),
        gpt.falcon,
    ),
    "RefinedWeb": REFINED_WEB,
    "RefinedWebModel": REFINED_WEB,
    "opt": Kind(
        KindDefaults(
            50272, 3072, 12, None, 2048, epsilon=1e-5, hidden_size=768, heads=12,
            activation="relu", tied=True,
            own_names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
        ),
        gpt.opt,
    ),
    "xglm": Kind(
        KindDefaults(
            256008, 4096, 24, None, 2048, epsilon=1e-5, hidden_size=1024, heads=16,
            activation="gelu", tied=True, own_names=XGLM_NAMES,
        ),
        gpt.xglm,
    ),
    "biogpt": Kind(
        KindDefaults(
            42384, 4096, 24, None, 1024, epsilon=1e-5, hidden_size=1024, heads=16,
            activation="gelu", tied=True,
        ),
        gpt.biogpt,
    ),
    "gpt_bigcode": Kind(
        KindDefaults(
            50257, 3072, 12, None, 1024, epsilon=1e-5, hidden_size=768, heads=12,
            activation="gelu_pytorch_tanh", tied=True, own_names=GPTJ_NAMES,
        ),
        gpt.gpt_bigcode,
    ),
    "gpt_neo": Kind(
        KindDefaults(
            50257, 8192, 24, None, 2048, epsilon=1e-5, hidden_size=2048, heads=16,
            activation="gelu_new", tied=True, own_names=GPT_NEO_NAMES,
        ),
        gpt.gpt_neo,
    ),
    "bloom": Kind(
        KindDefaults(
            250880, 256, 2, None, 2048, epsilon=1e-5, hidden_size=64, heads=8, tied=True,
            own_names=BLOOM_NAMES,
        ),
        gpt.bloom,
    ),
    "mpt": Kind(
        KindDefaults(
            50368, 8192, 24, None, 2048, epsilon=1e-5, hidden_size=2048, heads=16, tied=True,
            own_names=MPT_NAMES,
        ),
        gpt.mpt,
    ),
    "persimmon": Kind(
        KindDefaults(
            262144, 16384, 36, None, 16384, epsilon=1e-5, heads=64, rotated=0.5,
            activation="relu2", own_names=LAYER_EPSILON,
        ),
        gpt.persimmon,
    ),
    "mixtral": Kind(
        KindDefaults(32000, 14336, 32, 8, 131072, epsilon=1e-5, theta=1e6, mixture=True),
        moe.mixtral,
    ),
    "qwen2_moe": Kind(
        KindDefaults(
            151936, 5632, 24, 16, 32768, sliding_window=4096, hidden_size=2048, heads=16,
            mixture=True,
        ),
        moe.qwen2_moe,
    ),
    "qwen3_moe": Kind(
        KindDefaults(
            151936, 6144, 24, 4, 32768, sliding_window=4096, hidden_size=2048, mixture=True
        ),
        moe.qwen3_moe,
    ),
    "qwen3_next": Kind(
        KindDefaults(
            151936, 5632, 48, 2, 32768, head_dim=256, hidden_size=2048, heads=16, rotated=0.25,
            mixture=True, reads_types=True,
        ),
        moe.qwen3_next,
    ),
    "gpt_oss": Kind(
        KindDefaults(
            201088, 2880, 36, 8, 131072, epsilon=1e-5, head_dim=64, sliding_window=128,
            hidden_size=2880, heads=64, theta=150000.0, pattern=2, rope=GPT_OSS_ROPE, mixture=True,
        ),
        moe.gpt_oss,
    ),
    "deepseek_v2": Kind(
        KindDefaults(102400, 11008, 32, None, 2048, head_dim=64, mixture=True), switches.deepseek_v2
    ),
    "deepseek_v3": Kind(
        KindDefaults(
            129280, 18432, 61, 128, 4096, head_dim=64, hidden_size=7168, heads=128, mixture=True
        ),
        switches.deepseek_v3,
    ),
    "lfm2": Kind(
        KindDefaults(
            65536, 12288, 32, 8, 128000, epsilon=1e-5, hidden_size=2560, theta=1e6, tied=True,
            reads_types=True, own_names={"rms_norm_eps": "norm_eps"},
        ),
        switches.lfm2,
    ),
    "olmoe": Kind(
        KindDefaults(
            50304, 2048, 16, None, 4096, epsilon=1e-5, hidden_size=2048, heads=16, mixture=True
        ),
        moe.olmoe,
    ),
    "qwen3_5_text": Kind(
        KindDefaults(
            248320, 12288, 32, 4, 32768, head_dim=256, heads=16, rotated=0.25, reads_types=True
        ),
        moe.qwen3_5,
    ),
    "qwen3_5_moe_text": Kind(
        KindDefaults(
            248320, 5632, 40, 2, 32768, head_dim=256, hidden_size=2048, heads=16, rotated=0.25,
            mixture=True, reads_types=True,
        ),
        moe.qwen3_5_moe,
    ),
    "glm4_moe": Kind(
        KindDefaults(
            151552, 10944, 46, 8, 131072, epsilon=1e-5, heads=96, rotated=0.5, mixture=True
        ),
        moe.glm4_moe,
    ),
    "glm4_moe_lite": Kind(
        KindDefaults(
            154880, 10240, 47, 20, 202752, epsilon=1e-5, head_dim=64, hidden_size=2048, heads=20,
            mixture=True,
        ),
        moe.glm4_moe_lite,
    ),
    "dots1": Kind(
        KindDefaults(
            152064, 10944, 62, 32, 2048, sliding_window=4096, hidden_size=4608, mixture=True
        ),
        moe.dots1,
    ),
    "ernie4_5_moe": Kind(
        KindDefaults(
            103424, 12288, 28, 4, 131072, epsilon=1e-5, hidden_size=2560, heads=20, theta=5e5,
            tied=True, mixture=True,
        ),
        moe.ernie4_5_moe,
    ),
    "hunyuan_v1_moe": Kind(
        KindDefaults(290943, 11008, 32, None, 2048, epsilon=1e-5, mixture=True),
        moe.hunyuan_moe,
    ),
    "granitemoe": Kind(
        KindDefaults(32000, 11008, 32, None, 2048, mixture=True), moe.granitemoe
    ),
    "granitemoeshared": Kind(
        KindDefaults(32000, 11008, 32, None, 2048, mixture=True), moe.granitemoeshared
    ),
    "granitemoehybrid": Kind(
        KindDefaults(32000, 11008, 32, None, 2048, mixture=True, reads_types=True),
        moe.granitemoehybrid,
    ),
    "phimoe": Kind(
        KindDefaults(32064, 6400, 32, 8, 131072, epsilon=1e-5, theta=1e6, mixture=True),
        moe.phimoe,
    ),
    "lfm2_moe": Kind(
        KindDefaults(
            65536, 7168, 32, 8, 128000, epsilon=1e-5, hidden_size=2048, theta=1e6, tied=True,
            mixture=True, reads_types=True, own_names={"rms_norm_eps": "norm_eps"},
        ),
        moe.lfm2_moe,
    ),
    "minimax_m2": Kind(
        KindDefaults(
            200064, 1536, 62, 8, 196608, head_dim=128, hidden_size=3072, heads=48, theta=5e6,
            rotated=1.0, mixture=True,
        ),
        moe.minimax_m2,
    ),
    **{name: Kind(*parts) for name, parts in NEWER.items()},
}  # fmt: skip
"""The kinds by their `model_type`."""
