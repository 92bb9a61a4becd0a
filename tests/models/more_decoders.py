"""Directories of decoders that came after those of `test_llama_kinds`, and their settings."""

from __future__ import annotations

ROUTED: dict[str, object] = {
    **{"moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3},
}
DELTA: dict[str, object] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 6},
    **{"linear_value_head_dim": 10, "linear_conv_kernel_dim": 3, "num_hidden_layers": 4},
}
MAMBA: dict[str, object] = {
    **{"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_d_conv": 3, "mamba_n_groups": 2},
}
FACTORS: dict[str, object] = {
    **{"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.3},
    "logits_scaling": 4.0,
}
SHARED: dict[str, object] = {
    **{**FACTORS, "num_local_experts": 5, "num_experts_per_tok": 3},
    "shared_intermediate_size": 28,
}
NO_EXPERTS: dict[str, object] = {**SHARED, "num_local_experts": 0, "num_experts_per_tok": 0}
TWO_FACTORS = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "short_mscale": 1.2, "long_mscale": 1.3},
    **{"long_factor": [1.05, 1.2, 2.5, 3.0], "short_factor": [1.0, 1.1, 1.3, 1.4]},
    "original_max_position_embeddings": 100,
}
ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}

GEMMA4: dict[str, object] = {
    **{"saved_as": "Gemma4ForCausalLM", "num_hidden_layers": 4, "sliding_window": 9},
    **{"layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 8},
    **{"global_head_dim": 16, "hidden_size_per_layer_input": 0},
}

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "hunyuan_v1_dense of a larger base": (
        "HunYuanDenseV1",
        {"head_dim": 8, "rope_parameters": ALPHA},
    ),
    "qwen3_5_text": (
        "Qwen3_5Text",
        {
            **{**DELTA, "saved_as": "Qwen3_5ForCausalLM", "head_dim": 10},
            "partial_rotary_factor": 0.4,
        },
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        {
            **{**DELTA, "saved_as": "Qwen3_5MoeForCausalLM", "head_dim": 8, "num_experts": 5},
            **{"num_experts_per_tok": 3, "moe_intermediate_size": 20, "intermediate_size": None},
            "shared_expert_intermediate_size": 28,
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            **{**ROUTED, "head_dim": 16, "attention_bias": True, "use_qk_norm": True},
            **{"n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7},
        },
    ),
    "glm4_moe without a dense layer": (
        "Glm4Moe",
        {**ROUTED, "n_shared_experts": 2, "first_k_dense_replace": 0, "norm_topk_prob": False},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {
            **{**ROUTED, "kv_lora_rank": 20, "q_lora_rank": 12, "qk_rope_head_dim": 6},
            **{"qk_nope_head_dim": 10, "v_head_dim": 14, "num_key_value_heads": 4},
            **{"num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "dense"]},
        },
    ),
    "dots1": (
        "Dots1",
        {
            **{**ROUTED, "head_dim": 8, "n_shared_experts": 2, "first_k_dense_replace": 1},
            **{"sliding_window": 12, "max_window_layers": 1, "attention_bias": True},
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {
            **{"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 20, "head_dim": 8},
            **{"num_hidden_layers": 4, "moe_layer_interval": 2},
        },
    ),
    "ernie4_5_moe without an MLP beside": (
        "Ernie4_5_Moe",
        {
            **{"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 20},
            **{"moe_num_shared_experts": 0, "tie_word_embeddings": False},
        },
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1",
        {"num_experts": 5, "moe_topk": 2, "head_dim": 8, "attention_bias": True},
    ),
    "granitemoe": (
        "GraniteMoe",
        {**FACTORS, "num_local_experts": 5, "num_experts_per_tok": 3, "attention_bias": True},
    ),
    "granitemoeshared": ("GraniteMoeShared", SHARED),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {
            **{**SHARED, **MAMBA, "num_hidden_layers": 3},
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "granitemoehybrid without experts": (
        "GraniteMoeHybrid",
        {
            **{**NO_EXPERTS, "position_embedding_type": "rope", "tie_word_embeddings": True},
            **{"layer_types": ["full_attention"] * 2, "mamba_n_heads": 8},
        },
    ),
    "phimoe": (
        "Phimoe",
        {
            **{"num_local_experts": 6, "attention_bias": True, "lm_head_bias": True},
            "router_jitter_noise": 0.2,
        },
    ),
    "phimoe of longrope": (
        "Phimoe",
        {
            **{"num_local_experts": 4, "rope_parameters": TWO_FACTORS, "sliding_window": 20},
            "max_position_embeddings": 400,
        },
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            **{"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
            **{"num_dense_layers": 1, "moe_intermediate_size": 20, "num_experts": 6},
            **{"num_experts_per_tok": 3, "routed_scaling_factor": 1.5},
        },
    ),
    "lfm2_moe without biases": (
        "Lfm2Moe",
        {
            **{"layer_types": ["full_attention", "conv"], "num_dense_layers": 0},
            **{"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3},
            **{"use_expert_bias": False, "norm_topk_prob": False},
        },
    ),
    "apertus": ("Apertus", {"attention_bias": True}),
    "cwm": (
        "Cwm",
        {
            **{"head_dim": 10, "num_hidden_layers": 3, "sliding_window": 12, "mlp_bias": True},
            **{"bos_token_id": 0, "eos_token_id": 1},
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "hyperclovax": ("HyperCLOVAX", {**FACTORS, "head_dim": 10, "logits_scaling": 0.3}),
    "hyperclovax without norms behind": (
        "HyperCLOVAX",
        {"use_post_norm": False, "attention_bias": True, "mlp_bias": True},
    ),
    "exaone": ("Exaone", {"saved_as": "LlamaForCausalLM", "head_dim": 10}),
    "exaone_moe": (
        "ExaoneMoe",
        {
            **{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
            **{"num_hidden_layers": 4, "sliding_window": 9, "num_shared_experts": 2},
            **{"n_group": 2, "topk_group": 1, "first_k_dense_replace": 2},
        },
    ),
    "flex_olmo": ("FlexOlmo", {"num_experts": 5, "num_experts_per_tok": 3}),
    "iquestcoder": ("IQuestCoder", {"saved_as": "LlamaForCausalLM", "head_dim": 10}),
    "jais2": ("Jais2", {"layer_norm_eps": 1e-3, "mlp_bias": False}),
    "solar_open": (
        "SolarOpen",
        {
            **{**ROUTED, "head_dim": 16, "attention_bias": True, "n_shared_experts": 2},
            **{"n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7},
        },
    ),
    "gemma4_text": (
        "Gemma4Text",
        {
            **{**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
            **{"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 97},
        },
    ),
    "gemma4_text of experts": (
        "Gemma4Text",
        {
            **{**GEMMA4, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2},
            **{"moe_intermediate_size": 20, "final_logit_softcapping": 3.0},
            **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        },
    ),
    "vaultgemma": (
        "VaultGemma",
        {
            **{"head_dim": 10, "sliding_window": 12, "query_pre_attn_scalar": 20},
            "final_logit_softcapping": 20.0,
        },
    ),
    "youtu": (
        "Youtu",
        {
            **{"kv_lora_rank": 20, "q_lora_rank": None, "qk_rope_head_dim": 6, "v_head_dim": 14},
            **{"qk_nope_head_dim": 10, "num_key_value_heads": 4, "rope_interleave": False},
        },
    ),
    "mellum": (
        "Mellum",
        {
            **{"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
            **{"head_dim": 10, "sliding_window": 9, "num_hidden_layers": 3},
            **{"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            **{"mlp_layer_types": ["dense", "sparse", "sparse"]},
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 16, "rotary_dim": 8},
    ),
}
"""The class of each directory in transformers, and its settings."""

COMPILED_CASES = {"phimoe", "apertus"}
"""Cases for backends that compile: kernels of the others are those of older kinds."""
