"""Tiny language models of every registered kind, with random weights, made without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fuzzing.tiny_models import save_tiny_model
from gptrs.ir.dtypes import DType
from gptrs_backend_ref.backend import create

VOCABULARY = 97
CONTEXT = 256

_GPT2: dict[str, object] = {
    "vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 40, "n_layer": 2, "n_head": 4,
}  # fmt: skip
_LLAMA: dict[str, object] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": 40,
    "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10,
}  # fmt: skip
_LATENT: dict[str, object] = {
    **_LLAMA, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 20,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 10, "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
         "original_max_position_embeddings": 32}  # fmt: skip
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_GROWING = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
_LONGROPE = {
    "rope_type": "longrope",
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
    "original_max_position_embeddings": CONTEXT,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.5}
# Within `max_position_embeddings` it does not scale.
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2 untied": ("gpt2", {**_GPT2, "tie_word_embeddings": False, "n_inner": 50,
        "activation_function": "gelu", "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", _LLAMA),
    "llama of llama3": ("llama", {**_LLAMA, "rope_parameters": _LLAMA3, "num_key_value_heads": 4}),
    "llama of biases": ("llama", {**_LLAMA, "rope_parameters": _LINEAR, "attention_bias": True,
        "mlp_bias": True, "hidden_act": "gelu", "num_key_value_heads": 1}),
    "llama tied": ("llama", {**_LLAMA, "rope_parameters": _DYNAMIC, "tie_word_embeddings": True}),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": 12}),
    "mistral of yarn": ("mistral", {**_LLAMA, "rope_parameters": _YARN, "sliding_window": 40}),
    "ministral": ("ministral", {**_LLAMA, "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "ministral3": ("ministral3", {**_LLAMA, "rope_parameters": _GROWING, "sliding_window": None}),
    "qwen2": ("qwen2", {**_LLAMA, "use_sliding_window": True, "sliding_window": 20,
        "max_window_layers": 1}),
    "qwen3": ("qwen3", {**_LLAMA, "head_dim": 6, "attention_bias": True,
        "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**_LLAMA, "sliding_window": 12, "attn_logit_softcapping": 20.0}),
    "gemma3_text": ("gemma3_text", {**_LLAMA, "sliding_window": 12, "sliding_window_pattern": 2,
        "final_logit_softcapping": 30.0}),
    "gemma4_text": ("gemma4_text", {**_LLAMA, "sliding_window": 12, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "head_dim": 6, "global_head_dim": 10, "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": VOCABULARY, "final_logit_softcapping": 30.0}),
    "cohere2": ("cohere2", {**_LLAMA, "sliding_window": 20, "sliding_window_pattern": 2,
        "attention_bias": True}),
    "phi3 of longrope": ("phi3", {**_LLAMA, "rope_parameters": _LONGROPE}),
    "gpt_neox": ("gpt_neox", {**_LLAMA, "head_dim": 12, "rotary_pct": 0.5}),
    "opt": ("opt", {**_LLAMA, "ffn_dim": 56}),
    "bloom": ("bloom", {**_LLAMA, "n_layer": 2, "n_head": 4}),
    "falcon of linear biases": ("falcon", {**_LLAMA, "alibi": True, "multi_query": False,
        "parallel_attn": False, "bias": True}),
    "codegen": ("codegen", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 6,
        "rotary_dim": 4}),
    "xglm": ("xglm", {"vocab_size": VOCABULARY, "d_model": 40, "num_layers": 2, "ffn_dim": 56,
        "attention_heads": 4}),
    "olmo2": ("olmo2", _LLAMA),
    "gpt_oss": ("gpt_oss", {**_LLAMA, "sliding_window": 20, "num_local_experts": 4,
        "num_experts_per_tok": 2}),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, "q_lora_rank": None, "n_routed_experts": 4}),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, "n_group": 2, "topk_group": 1,
        "n_routed_experts": 6, "first_k_dense_replace": 1}),
    "qwen3_next": ("qwen3_next", {**_LLAMA, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20}),
    "lfm2": ("lfm2", {**_LLAMA, "layer_types": ["conv", "full_attention"], "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False}),
    "mamba": ("mamba", {"vocab_size": VOCABULARY, "hidden_size": 40, "num_hidden_layers": 2,
        "state_size": 6, "conv_kernel": 3}),
    "mamba2": ("mamba2", {"vocab_size": VOCABULARY, "hidden_size": 40, "num_hidden_layers": 2,
        "num_heads": 8, "head_dim": 10, "n_groups": 2, "state_size": 6, "conv_kernel": 3}),
}  # fmt: skip
"""The kind and the settings of each: what a kind has that others lack is in some of them."""


def save_tiny_lm(folder: Path, variant: str, dtype: DType, **others: object) -> Path:
    """Save a variant with random weights of `dtype`, so large that it is not sure of a token.

    `others` replace some of its settings.
    """
    kind, settings = VARIANTS[variant]
    random = np.random.default_rng(11)

    def weight(shape: Sequence[int]) -> np.ndarray:
        center, spread = (1, 0.2) if len(shape) == 1 else (0, 0.3)
        return random.normal(center, spread, shape).astype(dtype.numpy)

    return save_tiny_model(folder, kind, create(), {**settings, **others}, weight)
