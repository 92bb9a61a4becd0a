"""Describe the llama.cpp architectures of kinds in GGUF files; `kinds` names them."""

from __future__ import annotations

from msgspec.structs import replace

from gptrs.api.models import GgufArchitecture
from gptrs_models.gguf_settings import (
    SLIDING_THETA,
    bloom,
    convolution,
    defaults,
    delta_net,
    dots1,
    ernie4_5_moe,
    falcon,
    gemma3,
    gemma4,
    granitemoehybrid,
    mamba2,
    many_keys,
    minimax,
    ministral3,
    olmo3,
    olmoe,
    smollm3,
    starcoder,
    switched_window,
    vector,
    without_window,
)

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_SIZES_OF_GPT2 = (
    ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "n_positions"), ("intermediate_size", "n_inner"),
)  # fmt: skip

_OLMO2 = {
    **{key: name for key, name in _LLAMA.items() if key not in ("attn_norm", "ffn_norm")},
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SEED_OSS = {
    **{key: name for key, name in _LLAMA.items() if key != "ffn_norm"},
    "post_attention_norm": _LLAMA["ffn_norm"],
}
_HUNYUAN = {
    **_LLAMA,
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_EXAONE = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_q": "attn.attention.q_proj",
    "attn_k": "attn.attention.k_proj",
    "attn_v": "attn.attention.v_proj",
    "attn_output": "attn.attention.out_proj",
    "ffn_norm": "ln_2",
    "ffn_gate": "mlp.c_fc_0",
    "ffn_up": "mlp.c_fc_1",
    "ffn_down": "mlp.c_proj",
}
_STARCODER2 = {**_LLAMA, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_PHI3 = {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GEMMA2 = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA3 = {**_GEMMA2, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA4 = {
    **_GEMMA3,
    "layer_output_scale.weight": "layer_scalar",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
_GEMMA4_EXPERTS = {
    "ffn_gate_up": "experts.{}.gate_up_proj",
    **{key: f"experts.{{}}.{_LLAMA[key].removeprefix('mlp.')}" for key in _DENSE},
}
_GLM4 = {
    **_LLAMA,
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_PHI2 = {
    **{key: name for key, name in _LLAMA.items() if not key.startswith("ffn")},
    "output_norm": "model.final_layernorm",
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_BLOOM = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_FALCON = {key: name for key, name in _BLOOM.items() if key not in ("token_embd_norm", "ffn_norm")}
_FALCON_NORMS = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
_MIXTRAL = {
    **{key: name for key, name in _LLAMA.items() if key not in _DENSE},
    "ffn_gate_inp": "block_sparse_moe.gate",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_up": "block_sparse_moe.experts.{}.gate_up_proj",
    "ffn_gate": "block_sparse_moe.experts.{}.w1",
    "ffn_up": "block_sparse_moe.experts.{}.w3",
    "ffn_down": "block_sparse_moe.experts.{}.w2",
}
_MIXTURE = {
    **{key: name for key, name in _LLAMA.items() if key not in _DENSE},
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = {
    **{key: f"mlp.experts.{{}}.{_LLAMA[key].removeprefix('mlp.')}" for key in _DENSE},
    "ffn_gate_up": "mlp.experts.{}.gate_up_proj",
}
_GPT_OSS = {
    **{key: name for key, name in _LLAMA.items() if key not in (*_DENSE, "ffn_norm")},
    "post_attention_norm": _LLAMA["ffn_norm"],
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    # The biases of all experts are one tensor, while their matrices are separate.
    **{f"{key}_exps": _EXPERTS[key].format("").replace("..", ".") for key in _DENSE},
}
_DOTS1 = {
    **_LLAMA,
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_ERNIE_MOE = {
    **{key: name for key, name in _DOTS1.items() if not key.endswith(("q_norm", "k_norm"))},
    "exp_probs_b": "mlp.moe_statics.e_score_correction_bias",
}
_GRANITE_MOE = {
    **{key: name for key, name in _LLAMA.items() if key not in _DENSE},
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **{f"{key}_shexp": f"shared_mlp.{_LLAMA[key].removeprefix('mlp.')}" for key in _DENSE},
}
_GRANITE_EXPERTS = {key: f"block_sparse_moe.{name[4:]}" for key, name in _EXPERTS.items()}
_MINIMAX = {**_MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
_HUNYUAN_MOE = {
    **{key: name for key, name in _HUNYUAN.items() if key not in _DENSE},
    "ffn_gate_inp": "mlp.gate.wg",
    **{f"{key}_shexp": f"mlp.shared_{_LLAMA[key]}" for key in _DENSE},
}
_LATENT = {
    **{key: name for key, name in _DOTS1.items() if key.partition("_")[0] != "attn"},
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
}
_LFM2 = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
}
_LFM2_EXPERTS = {
    **{key: f"feed_forward.experts.{{}}.{_LFM2[key].split('.')[-1]}" for key in _DENSE},
    "ffn_gate_up": "feed_forward.experts.{}.gate_up_proj",
}
_DELTA = {
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
}
_GLM4_MOE = {**{key: name for key, name in _DOTS1.items() if key != "ffn_norm"}, **_SEED_OSS}
_MIXER = {
    "ssm_in": "in_proj",
    "ssm_conv1d": "conv1d",
    "ssm_x": "x_proj",
    "ssm_dt": "dt_proj",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
_MAMBA = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "attn_norm": "norm",
    **{key: f"mixer.{name}" for key, name in _MIXER.items()},
}
_MAMBA2 = {**_MAMBA, "ssm_dt.bias": "mixer.dt_bias"}
_GRANITE_HYBRID = {
    **_GRANITE_MOE,
    # Models without experts have their MLP as the shared one.
    **{key: _GRANITE_MOE[f"{key}_shexp"] for key in _DENSE},
    **{key: f"mamba.{name}" for key, name in _MIXER.items()},
    "ssm_dt.bias": "mamba.dt_bias",
}
_BERT = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NOMIC_BERT = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_gate": "mlp.fc12",
    "ffn_up": "mlp.fc11",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_WIDTH = ("expert_feed_forward_length", "moe_intermediate_size")
_SHARED_WIDTH = ("expert_shared_feed_forward_length", "shared_expert_intermediate_size")


_ONE_GROUP = (("expert_group_count", "n_group", 1), ("expert_group_used_count", "topk_group", 1))
_SIGMOID = ("expert_gating_func", 2)
_RMS_EPSILON = "attention.layer_norm_rms_epsilon"


def _chosen(count: str) -> tuple[tuple[str, str], ...]:
    return (("expert_count", count), ("expert_used_count", "num_experts_per_tok"))


_LAYER_EPSILON = "attention.layer_norm_epsilon"
_QUERY, _UP = "blk.0.attn_q.bias", "blk.0.ffn_up.bias"
_OF_ALL = (("attention_bias", _QUERY), ("mlp_bias", _UP))
_QUERY_NORM = ("use_qk_norm", "blk.0.attn_q_norm.weight")


LLAMA = GgufArchitecture(
    _LLAMA, rotated=True, biases=_OF_ALL, unused_window=True, prepare=without_window,
    defaults=defaults("llama"),
)  # fmt: skip
MISTRAL = replace(  # `general.architecture` is `llama`
    LLAMA, prepare=None, read=False, defaults=defaults("mistral")
)
MINISTRAL3 = replace(
    LLAMA, unused_window=False, biases=(), log_scale=1.0, finish=ministral3, written=False,
)  # fmt: skip
QWEN2 = GgufArchitecture(
    _LLAMA, unused_window=True, prepare=switched_window, defaults=defaults("qwen2")
)
QWEN3 = replace(QWEN2, fixed=(("attention_bias", False, False),), defaults=defaults("qwen3"))
GPT2 = GgufArchitecture(
    _GPT2, "transformer.h", turned=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    epsilon=(_LAYER_EPSILON, "layer_norm_epsilon"), rotary=False, wide=True,
    defaults=defaults("gpt_bigcode", intermediate_size=None),  # the same in GPT-2
    activations=("gelu_new", "gelu_pytorch_tanh"),
    sizes=(*_SIZES_OF_GPT2, ("num_key_value_heads", ""), ("head_dim", "")),
    fixed=(("scale_attn_weights", True, True), ("scale_attn_by_inverse_layer_idx", False, False)),
)  # fmt: skip
OLMO2 = GgufArchitecture(_OLMO2, defaults=defaults("olmo2"))
OLMO3 = replace(
    OLMO2, window=4096, pattern=4, marker="olmo2.attention.sliding_window", prepare=olmo3,
    local_theta=("rope_local_base_freq", None),
    defaults=defaults("olmo3"),
)  # fmt: skip
EXAONE4 = GgufArchitecture(_OLMO2, window=0, pattern=4, defaults=defaults("exaone4"))
EXAONE = GgufArchitecture(
    _EXAONE, "transformer.h", written=False,
    fixed=(("attention_bias", False, False), ("mlp_bias", False, False)),
)  # fmt: skip
SEED_OSS = GgufArchitecture(
    _SEED_OSS, biases=_OF_ALL[:1], defaults=defaults("seed_oss"),
    fixed=(("attention_out_bias", False, False), ("mlp_bias", False, False)),
)  # fmt: skip
HUNYUAN_V1_DENSE = GgufArchitecture(
    _HUNYUAN, fixed=(("attention_bias", False, False),), defaults=defaults("hunyuan_v1_dense")
)
GRANITE = GgufArchitecture(
    _LLAMA, rotated=True, biases=_OF_ALL,
    numbers=(
        ("attention.scale", "attention_multiplier", 1.0),
        ("embedding_scale", "embedding_multiplier", 1.0),
        ("residual_scale", "residual_multiplier", 1.0),
        ("logit_scale", "logits_scaling", 1.0),
    ),
    stated=(("rope.scaling.finetuned", True),),  # false would mean no rotary embedding
    defaults=defaults("granite"),
)  # fmt: skip
STARCODER2 = GgufArchitecture(
    _STARCODER2, epsilon=(_LAYER_EPSILON, "norm_epsilon"),
    biases=(("use_bias", _QUERY),), activations=("gelu_pytorch_tanh",),
    defaults=defaults("starcoder2"),
)  # fmt: skip
PHI3 = GgufArchitecture(_PHI3, share=1.0, defaults=defaults("phi3"))
STABLELM = GgufArchitecture(
    _LLAMA, epsilon=(_LAYER_EPSILON, "layer_norm_eps"),
    biases=(("use_qkv_bias", _QUERY),), share=0.25,
    fixed=(("use_parallel_residual", False, False), ("qk_layernorm", False, False)),
    stated=(("use_parallel_residual", False),),
    defaults=defaults("stablelm"),
)  # fmt: skip
COHERE = GgufArchitecture(
    _LLAMA, epsilon=(_LAYER_EPSILON, "layer_norm_eps"),
    biases=(*_OF_ALL[:1], _QUERY_NORM),
    numbers=(("logit_scale", "logit_scale", 0.0625),),
    defaults=defaults("cohere"),
)  # fmt: skip
ARCEE = GgufArchitecture(
    _LLAMA, rotated=True, biases=_OF_ALL, activations=("relu2",), defaults=defaults("arcee")
)
NEMOTRON = GgufArchitecture(
    _LLAMA, epsilon=(_LAYER_EPSILON, "norm_eps"), biases=_OF_ALL,
    activations=("relu2",), share=0.5, offset=1.0,
    defaults=defaults("nemotron"),
)  # fmt: skip
GEMMA = GgufArchitecture(
    _LLAMA, activations=("gelu_pytorch_tanh",), offset=1.0, defaults=defaults("gemma")
)
GEMMA2 = GgufArchitecture(
    _GEMMA2, activations=("gelu_pytorch_tanh",), offset=1.0, window=4096,
    pattern=2, largest=46,
    numbers=(
        ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", "final_logit_softcapping", 30.0),
    ),
    defaults=defaults("gemma2"),
)  # fmt: skip
_GEMMA3_TEXT = GgufArchitecture(
    _GEMMA3, activations=("gelu_pytorch_tanh",), offset=1.0, window=0,
    pattern=6, largest=62, fixed=(("attn_logit_softcapping", None, None),),
    options=(("final_logit_softcapping", "final_logit_softcapping"),),
    local_theta=("rope_local_base_freq", SLIDING_THETA), prepare=gemma3,
    defaults=defaults("gemma3_text"),
)  # fmt: skip
_BIDIRECTIONAL = ("use_bidirectional_attention", True)
_GEMMA_EMBEDDING = replace(
    _GEMMA3_TEXT, marker="gemma-embedding.block_count", stated=(("attention.causal", False),),
    fixed=(*_GEMMA3_TEXT.fixed, (*_BIDIRECTIONAL, False)),
)  # fmt: skip
GEMMA3_TEXT = replace(_GEMMA3_TEXT, variants=((_BIDIRECTIONAL, _GEMMA_EMBEDDING),))
GEMMA4_TEXT = GgufArchitecture(
    _GEMMA4, experts=_GEMMA4_EXPERTS, finish=gemma4, written=False, unused_window=True,
    sizes=(
        ("head_dim", "global_head_dim"), ("num_key_value_heads", ""), ("intermediate_size", ""),
    ),
    options=(("final_logit_softcapping", "final_logit_softcapping"),),
)  # fmt: skip
LFM2 = GgufArchitecture(
    _LFM2, epsilon=(_RMS_EPSILON, "norm_eps"), keyless="conv", written=False,
    shapes={"shortconv.conv.weight": convolution},
    integers=(("shortconv.l_cache", "conv_L_cache"),),
    fixed=(("block_auto_adjust_ff_dim", False, True), ("conv_bias", False, False)),
)  # fmt: skip
LFM2_MOE = replace(
    LFM2, experts=_LFM2_EXPERTS, bare=("exp_probs_b.bias",),
    integers=(
        *LFM2.integers, *_chosen("num_experts"), _WIDTH,
        ("leading_dense_block_count", "num_dense_layers"),
    ),
    numbers=(("expert_weights_scale", "routed_scaling_factor", 1.0),), stated=(_SIGMOID,),
    fixed=(("conv_bias", False, False),),
)  # fmt: skip
COHERE2 = GgufArchitecture(
    _LLAMA, epsilon=(_LAYER_EPSILON, "layer_norm_eps"), window=4096, pattern=4,
    numbers=(("logit_scale", "logit_scale", 0.0625),),
    fixed=(("attention_bias", False, False),),
    defaults=defaults("cohere2"),
)  # fmt: skip
OLMO = GgufArchitecture(
    _LLAMA, rotated=True, epsilon=(_LAYER_EPSILON, "layer_norm_eps"),
    options=(("attention.clamp_kqv", "clip_qkv"),), fixed=(("attention_bias", False, False),),
    defaults=defaults("olmo"),
)  # fmt: skip
SMOLLM3 = GgufArchitecture(
    _LLAMA, rotated=True, biases=_OF_ALL,
    fixed=(("no_rope_layer_interval", 4, 4),), prepare=smollm3,
    defaults=defaults("smollm3"),
)  # fmt: skip
GLM4 = GgufArchitecture(
    _GLM4, biases=_OF_ALL[:1], share=0.5,
    defaults=defaults("glm4"),
)  # fmt: skip
ERNIE4_5 = GgufArchitecture(
    _LLAMA, fixed=(("use_bias", False, False),), defaults=defaults("ernie4_5")
)
PHI = GgufArchitecture(
    _PHI2, epsilon=(_LAYER_EPSILON, "layer_norm_eps"), share=0.5,
    activations=("gelu_new", "gelu_pytorch_tanh"), fixed=(("qk_layernorm", False, False),),
    defaults=defaults("phi"),
)  # fmt: skip
GPT_NEOX = GgufArchitecture(
    _NEOX, "gpt_neox.layers", epsilon=(_LAYER_EPSILON, "layer_norm_eps"),
    grouped=True, share=0.25, activations=("gelu",), wide=True, prepare=many_keys,
    sizes=(("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")),
    flags=(("use_parallel_residual", "use_parallel_residual"),),
    fixed=(("attention_bias", True, True), ("tie_word_embeddings", False, False)),
    defaults=defaults("gpt_neox"),
)  # fmt: skip
BLOOM = GgufArchitecture(
    _BLOOM, "transformer.h", epsilon=(_LAYER_EPSILON, "layer_norm_epsilon"),
    grouped=True, rotary=False, activations=("gelu_pytorch_tanh",), wide=True, prepare=bloom,
    sizes=(
        ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "seq_length"),
    ),
    fixed=(("apply_residual_connection_post_layernorm", False, False),),
    defaults=defaults("bloom"),
)  # fmt: skip
_OLDER_FALCON = GgufArchitecture(
    _FALCON, "transformer.h", epsilon=(_LAYER_EPSILON, "layer_norm_epsilon"),
    grouped=True, activations=("gelu",), wide=True, prepare=falcon,
    defaults=defaults("falcon", intermediate_size=None),
    sizes=(("num_key_value_heads", "num_kv_heads"), ("intermediate_size", "ffn_hidden_size")),
    fixed=(
        ("new_decoder_architecture", True, False), ("num_ln_in_parallel_attn", 1, 2),
        ("alibi", False, False), ("bias", False, False),
    ),
)  # fmt: skip
_NEWER_FALCON = replace(
    _OLDER_FALCON, names={**_FALCON, **_FALCON_NORMS}, marker="blk.0.attn_norm_2.weight",
    fixed=(("num_ln_in_parallel_attn", 2, 2), *_OLDER_FALCON.fixed[:1], *_OLDER_FALCON.fixed[2:]),
)  # fmt: skip
FALCON = replace(_OLDER_FALCON, variants=((("num_ln_in_parallel_attn", 2), _NEWER_FALCON),))
GPT_BIGCODE = GgufArchitecture(
    _GPT2, "transformer.h", epsilon=(_LAYER_EPSILON, "layer_norm_epsilon"),
    rotary=False, activations=("gelu_pytorch_tanh",),
    sizes=_SIZES_OF_GPT2, wide=True, prepare=starcoder,
    fixed=(
        ("multi_query", True, True), ("scale_attn_weights", True, True),
        ("add_cross_attention", False, False),
    ),
    defaults=defaults("gpt_bigcode", intermediate_size=None),
)  # fmt: skip
MIXTRAL = GgufArchitecture(
    _MIXTRAL, experts=_MIXTRAL_EXPERTS, rotated=True, integers=_chosen("num_local_experts"),
    marker="blk.0.ffn_gate_inp.weight",
    defaults=defaults("mixtral"),
)  # fmt: skip
QWEN2_MOE = GgufArchitecture(
    _MIXTURE, experts=_EXPERTS, prepare=switched_window,
    integers=(*_chosen("num_experts"), _WIDTH, _SHARED_WIDTH),
    fixed=(
        ("norm_topk_prob", False, False), ("decoder_sparse_step", 1, 1),
        ("mlp_only_layers", [], []), ("qkv_bias", True, True),
    ),
    defaults=defaults("qwen2_moe"),
)  # fmt: skip
QWEN3_MOE = GgufArchitecture(
    _MIXTURE, experts=_EXPERTS, prepare=switched_window,
    integers=(*_chosen("num_experts"), _WIDTH),
    fixed=(
        ("norm_topk_prob", True, False), ("decoder_sparse_step", 1, 1),
        ("mlp_only_layers", [], []), ("attention_bias", False, False),
    ),
    defaults=defaults("qwen3_moe"),
)  # fmt: skip
GPT_OSS = GgufArchitecture(
    _GPT_OSS, experts=_EXPERTS, window=128, pattern=2, bare=("attn_sinks.weight",),
    rounded=False, integers=_chosen("num_local_experts"),
    biases=(("attention_bias", _QUERY),), written=False,
    fixed=(("swiglu_limit", 7.0, 7.0), ("swiglu_alpha", 1.702, 1.702)),
    defaults=defaults("gpt_oss"),
)  # fmt: skip
GLM4_MOE = GgufArchitecture(
    _GLM4_MOE, experts=_EXPERTS, share=0.5, bare=("exp_probs_b.bias",),
    integers=(
        *_chosen("n_routed_experts"), _WIDTH, ("expert_shared_count", "n_shared_experts"),
        ("leading_dense_block_count", "first_k_dense_replace"),
    ),
    numbers=(("expert_weights_scale", "routed_scaling_factor", 1.0),),
    flags=(("expert_weights_norm", "norm_topk_prob"),), stated=(_SIGMOID,),
    biases=(("attention_bias", _QUERY), _QUERY_NORM), counts=_ONE_GROUP,
    defaults=defaults("glm4_moe", n_shared_experts=1),
)  # fmt: skip
YOUTU = GgufArchitecture(_LATENT, latent=True, written=False, log_scale=10.0)
DEEPSEEK_V2 = replace(
    YOUTU, experts=_EXPERTS, marker="deepseek2.expert_count", integers=GLM4_MOE.integers,
    numbers=GLM4_MOE.numbers, counts=_ONE_GROUP, stated=(("expert_weights_norm", False),),
    fixed=(("topk_method", "group_limited_greedy", "greedy"),),
)  # fmt: skip
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2, marker="deepseek2.expert_count deepseek2.expert_gating_func=2",
    bare=("exp_probs_b.bias",), stated=(_SIGMOID,),
    switches=(("expert_weights_norm", "norm_topk_prob"),), fixed=(),
)  # fmt: skip
DOTS1 = replace(
    GLM4_MOE, names=_DOTS1, share=None, biases=(), prepare=dots1,
    defaults=defaults("dots1", norm_topk_prob=False),
)  # fmt: skip
ERNIE4_5_MOE = GgufArchitecture(
    _ERNIE_MOE, experts=_EXPERTS, bare=("exp_probs_b.bias",),
    shapes={"exp_probs_b.bias": lambda shape: (1, *shape)[-2:]},
    integers=(
        ("expert_count", "moe_num_experts"), ("expert_used_count", "moe_k"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("leading_dense_block_count", "moe_layer_start_index"),
    ),
    counts=(
        ("expert_shared_count", "moe_num_shared_experts", 0),
        ("interleave_moe_layer_step", "moe_layer_interval", 1),
    ),
    fixed=(("use_bias", False, False),), prepare=ernie4_5_moe,
    defaults=defaults("ernie4_5_moe", moe_num_shared_experts=2),
)  # fmt: skip
_GRANITE_SHARED_WIDTH = ("expert_shared_feed_forward_length", "shared_intermediate_size")
GRANITEMOE = replace(
    GRANITE, names=_GRANITE_MOE, experts=_GRANITE_EXPERTS, written=False,
    integers=_chosen("num_local_experts"), biases=_OF_ALL[:1],
    defaults=defaults("granitemoe"),
)  # fmt: skip
GRANITEMOESHARED = replace(
    GRANITEMOE, marker="blk.0.ffn_gate_shexp.weight",
    integers=(*GRANITEMOE.integers, _GRANITE_SHARED_WIDTH),
    defaults=defaults("granitemoeshared"),
)  # fmt: skip
_OF_MIXERS = {
    "ssm_conv1d.weight": convolution, "ssm_a": vector, "ssm_d": vector,
    "ssm_norm.weight": vector,
}  # fmt: skip
MAMBA = GgufArchitecture(
    _MAMBA, "backbone.layers", epsilon=(_RMS_EPSILON, "layer_norm_epsilon"), rotary=False,
    decays=("ssm_a",), shapes={"ssm_conv1d.weight": convolution}, written=False,
    sizes=tuple((name, "") for name in (
        "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
        "max_position_embeddings",
    )),
    integers=(
        ("ssm.conv_kernel", "conv_kernel"), ("ssm.state_size", "state_size"),
        ("ssm.inner_size", "intermediate_size"), ("ssm.time_step_rank", "time_step_rank"),
    ),
    stated=(("ssm.dt_b_c_rms", False),),
)  # fmt: skip
FALCON_MAMBA = replace(
    MAMBA, marker="mamba.ssm.dt_b_c_rms=True", stated=(("ssm.dt_b_c_rms", True),)
)
MAMBA2 = replace(
    MAMBA, names=_MAMBA2, shapes=_OF_MIXERS, finish=mamba2, stated=(),
    integers=(
        *MAMBA.integers[:2], ("ssm.group_count", "n_groups"), ("ssm.time_step_rank", "num_heads"),
    ),
)  # fmt: skip
GRANITEMOEHYBRID = replace(
    GRANITEMOE, names=_GRANITE_HYBRID, decays=("ssm_a",), shapes=_OF_MIXERS, keyless="mamba",
    finish=granitemoehybrid, stated=(), biases=(), fixed=(("attention_bias", False, False),),
    integers=(
        ("ssm.conv_kernel", "mamba_d_conv"), ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"), ("ssm.time_step_rank", "mamba_n_heads"),
    ),
    counts=tuple(
        (key, name, 0) for key, name in (*_chosen("num_local_experts"), _GRANITE_SHARED_WIDTH)
    ),
)  # fmt: skip
MINIMAX_M2 = GgufArchitecture(
    _MINIMAX, experts=_MIXTRAL_EXPERTS, share=1.0, bare=("exp_probs_b.bias",),
    integers=_chosen("num_local_experts"), stated=(_SIGMOID,), prepare=minimax,
    defaults=defaults("minimax_m2"),
)  # fmt: skip
HUNYUAN_V1_MOE = GgufArchitecture(
    _HUNYUAN_MOE, experts=_EXPERTS, fixed=(("attention_bias", False, False),),
    integers=(("expert_count", "num_experts"), ("expert_used_count", "moe_topk")),
    defaults=defaults("hunyuan_v1_moe"),
)  # fmt: skip
_TILED = {key: f"tiled_{name}" for key, name in _DELTA.items()}
QWEN3_5_TEXT = GgufArchitecture(
    {**_SEED_OSS, **_TILED}, share=0.25, offset=1.0, decays=("ssm_a",),
    shapes={"ssm_conv1d.weight": convolution}, finish=delta_net, written=False,
    integers=(
        ("ssm.conv_kernel", "linear_conv_kernel_dim"), ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
    ),
    counts=(("full_attention_interval", "full_attention_interval", 4),),
    fixed=(("linear_tiled_heads", True, False),),
)  # fmt: skip
QWEN3_5_MOE_TEXT = replace(
    QWEN3_5_TEXT, experts=_EXPERTS,
    names={**_MIXTURE, **_TILED, "post_attention_norm": _LLAMA["ffn_norm"]},
    integers=(*QWEN3_5_TEXT.integers, *_chosen("num_experts"), _WIDTH, _SHARED_WIDTH),
)  # fmt: skip
# Older files have the joined projection of Qwen3-Next as it is; heads are not tiled in either.
_OLDER_QWEN3_NEXT = replace(
    QWEN3_5_MOE_TEXT, names={**QWEN3_5_MOE_TEXT.names, **_DELTA}, marker="blk.0.ssm_in.weight",
    fixed=(),
)  # fmt: skip
QWEN3_NEXT = replace(
    _OLDER_QWEN3_NEXT, marker="",
    variants=((("linear_parted_projections", False), _OLDER_QWEN3_NEXT),),
    fixed=(("linear_parted_projections", True, False),),
)  # fmt: skip
BERT = GgufArchitecture(  # also RoBERTa, whose first rows of positions files leave out
    _BERT, "encoder.layer", epsilon=(_LAYER_EPSILON, "layer_norm_eps"), rotary=False,
    sizes=(("num_key_value_heads", ""), ("head_dim", ""), ("tie_word_embeddings", "")),
    rows=(("type_vocab_size", "token_types.weight"),), stated=(("attention.causal", False),),
    written=False,
)  # fmt: skip
NOMIC_BERT = replace(
    BERT, names=_NOMIC_BERT, layers="encoder.layers", rotary=True,
    sizes=(("tie_word_embeddings", ""),),
)  # fmt: skip
JAIS2 = GgufArchitecture(
    _LLAMA, epsilon=(_LAYER_EPSILON, "layer_norm_eps"), biases=_OF_ALL, activations=("relu2",),
    defaults=defaults("jais2"),
)  # fmt: skip
OLMOE = GgufArchitecture(
    _MIXTURE, experts=_EXPERTS, integers=_chosen("num_experts"), prepare=olmoe,
    fixed=(
        ("norm_topk_prob", False, False), ("clip_qkv", None, None),
        ("attention_bias", False, False),
    ),
    defaults=defaults("olmoe"),
)  # fmt: skip
