"""The architectures of llama.cpp that are kinds here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from gptrs_runtime.sources.gguf_architecture import LAYER_EPSILON, Architecture

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
_GPT2_TURNED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")

_OLMO2 = {
    **{key: name for key, name in _LLAMA.items() if key not in ("attn_norm", "ffn_norm")},
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
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
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_MIXTRAL = {
    **{key: name for key, name in _LLAMA.items() if key not in _DENSE},
    "ffn_gate_inp": "block_sparse_moe.gate",
}
_MIXTRAL_EXPERTS = {
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
_EXPERTS = {key: f"mlp.experts.{{}}.{_LLAMA[key].removeprefix('mlp.')}" for key in _DENSE}
_GPT_OSS = {
    **{key: name for key, name in _LLAMA.items() if key not in (*_DENSE, "ffn_norm")},
    "post_attention_norm": _LLAMA["ffn_norm"],
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    # Biases of all experts are one tensor; their matrices are apart.
    **{f"{key}_exps": name.format("").replace("..", ".") for key, name in _EXPERTS.items()},
}
_WIDTH = ("expert_feed_forward_length", "moe_intermediate_size")
_SHARED_WIDTH = ("expert_shared_feed_forward_length", "shared_expert_intermediate_size")


def _chosen(count: str) -> tuple[tuple[str, str], ...]:
    return (("expert_count", count), ("expert_used_count", "num_experts_per_tok"))


_QUERY, _UP = "blk.0.attn_q.bias", "blk.0.ffn_up.bias"
_OF_ALL = (("attention_bias", _QUERY), ("mlp_bias", _UP))

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _LLAMA, rotated=True, biases=_OF_ALL),
    "qwen2": Architecture("qwen2", _LLAMA),
    "qwen3": Architecture("qwen3", _LLAMA, fixed=(("attention_bias", False, False),)),
    "gpt2": Architecture("gpt2", _GPT2, "transformer.h", turned=_GPT2_TURNED),
    "olmo2": Architecture("olmo2", _OLMO2),
    "granite": Architecture(
        "granite", _LLAMA, rotated=True, biases=_OF_ALL,
        numbers=(
            ("attention.scale", "attention_multiplier", 1.0),
            ("embedding_scale", "embedding_multiplier", 1.0),
            ("residual_scale", "residual_multiplier", 1.0),
            ("logit_scale", "logits_scaling", 1.0),
        ),
    ),
    "starcoder2": Architecture(
        "starcoder2", _STARCODER2, epsilon=(LAYER_EPSILON, "norm_epsilon"),
        biases=(("use_bias", _QUERY),), activations=("gelu_pytorch_tanh",),
    ),
    "phi3": Architecture("phi3", _PHI3, share=1.0),
    "stablelm": Architecture(
        "stablelm", _LLAMA, epsilon=(LAYER_EPSILON, "layer_norm_eps"),
        biases=(("use_qkv_bias", _QUERY),), share=0.25,
        fixed=(("use_parallel_residual", False, False), ("qk_layernorm", False, False)),
    ),
    "command-r": Architecture(
        "cohere", _LLAMA, epsilon=(LAYER_EPSILON, "layer_norm_eps"), biases=_OF_ALL[:1],
        numbers=(("logit_scale", "logit_scale", 0.0625),),
    ),
    "arcee": Architecture(
        "arcee", _LLAMA, rotated=True, biases=_OF_ALL, activations=("relu2",)
    ),
    "nemotron": Architecture(
        "nemotron", _LLAMA, epsilon=(LAYER_EPSILON, "norm_eps"), biases=_OF_ALL,
        activations=("relu2",), share=0.5, offset=1.0,
    ),
    "gemma": Architecture("gemma", _LLAMA, activations=("gelu_pytorch_tanh",), offset=1.0),
    "gemma2": Architecture(
        "gemma2", _GEMMA2, activations=("gelu_pytorch_tanh",), offset=1.0, window=4096,
        pattern=2, largest=46,
        numbers=(
            ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", "final_logit_softcapping", 30.0),
        ),
    ),
    "gemma3": Architecture(
        "gemma3_text", _GEMMA3, activations=("gelu_pytorch_tanh",), offset=1.0, window=0,
        pattern=6, largest=62, fixed=(("attn_logit_softcapping", None, None),),
        options=(("final_logit_softcapping", "final_logit_softcapping"),),
    ),
    "cohere2": Architecture(
        "cohere2", _LLAMA, epsilon=(LAYER_EPSILON, "layer_norm_eps"), window=4096, pattern=4,
        numbers=(("logit_scale", "logit_scale", 0.0625),),
        fixed=(("attention_bias", False, False),),
    ),
    "olmo": Architecture(
        "olmo", _LLAMA, rotated=True, epsilon=(LAYER_EPSILON, "layer_norm_eps"),
        options=(("attention.clamp_kqv", "clip_qkv"),), fixed=(("attention_bias", False, False),),
    ),
    "smollm3": Architecture(
        "smollm3", _LLAMA, rotated=True, biases=_OF_ALL,
        fixed=(("no_rope_layer_interval", 4, 4),),
    ),
    "glm4": Architecture(
        "glm4", _GLM4, biases=_OF_ALL[:1], share=0.5,
    ),
    "ernie4_5": Architecture("ernie4_5", _LLAMA, fixed=(("use_bias", False, False),)),
    "phi2": Architecture(
        "phi", _PHI2, epsilon=(LAYER_EPSILON, "layer_norm_eps"), share=0.5,
        activations=("gelu_new", "gelu_pytorch_tanh"), fixed=(("qk_layernorm", False, False),),
    ),
    "gptneox": Architecture(
        "gpt_neox", _NEOX, "gpt_neox.layers", epsilon=(LAYER_EPSILON, "layer_norm_eps"),
        grouped=True, share=0.25, activations=("gelu",),
        sizes=(("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")),
        flags=(("use_parallel_residual", "use_parallel_residual"),),
        fixed=(("attention_bias", True, True), ("tie_word_embeddings", False, False)),
    ),
    "bloom": Architecture(
        "bloom", _BLOOM, "transformer.h", epsilon=(LAYER_EPSILON, "layer_norm_epsilon"),
        grouped=True, rotary=False, activations=("gelu_pytorch_tanh",),
        sizes=(
            ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
            ("max_position_embeddings", "seq_length"),
        ),
        fixed=(("apply_residual_connection_post_layernorm", False, False),),
    ),
    "falcon": Architecture(
        "falcon", _FALCON, "transformer.h", epsilon=(LAYER_EPSILON, "layer_norm_epsilon"),
        grouped=True, activations=("gelu",),
        sizes=(("num_key_value_heads", "num_kv_heads"), ("intermediate_size", "ffn_hidden_size")),
        fixed=(
            ("new_decoder_architecture", True, False), ("num_ln_in_parallel_attn", 1, 2),
            ("alibi", False, False), ("bias", False, False),
        ),
    ),
    "starcoder": Architecture(
        "gpt_bigcode", _GPT2, "transformer.h", epsilon=(LAYER_EPSILON, "layer_norm_epsilon"),
        rotary=False, activations=("gelu_pytorch_tanh",),
        sizes=(
            ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"), ("max_position_embeddings", "n_positions"),
            ("intermediate_size", "n_inner"),
        ),
        fixed=(
            ("multi_query", True, True), ("scale_attn_weights", True, True),
            ("add_cross_attention", False, False),
        ),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe", _MIXTURE, experts=_EXPERTS,
        integers=(*_chosen("num_experts"), _WIDTH, _SHARED_WIDTH),
        fixed=(
            ("norm_topk_prob", False, False), ("decoder_sparse_step", 1, 1),
            ("mlp_only_layers", [], []), ("qkv_bias", True, True),
        ),
    ),
    "qwen3moe": Architecture(
        "qwen3_moe", _MIXTURE, experts=_EXPERTS,
        integers=(*_chosen("num_experts"), _WIDTH),
        fixed=(
            ("norm_topk_prob", True, False), ("decoder_sparse_step", 1, 1),
            ("mlp_only_layers", [], []), ("attention_bias", False, False),
        ),
    ),
    "gpt-oss": Architecture(
        "gpt_oss", _GPT_OSS, experts=_EXPERTS, window=128, pattern=2, bare=("attn_sinks",),
        rounded=False, integers=_chosen("num_local_experts"),
        biases=(("attention_bias", _QUERY),), written=False,
        fixed=(("swiglu_limit", 7.0, 7.0), ("swiglu_alpha", 1.702, 1.702)),
    ),
    "olmoe": Architecture(
        "olmoe", _MIXTURE, experts=_EXPERTS, integers=_chosen("num_experts"),
        fixed=(
            ("norm_topk_prob", False, False), ("clip_qkv", None, None),
            ("attention_bias", False, False),
        ),
    ),
}  # fmt: skip
"""By `general.architecture`."""

VARIANTS: Mapping[str, tuple[str, Architecture]] = {
    "llama": (
        "blk.0.ffn_gate_inp.weight",
        Architecture(
            "mixtral", _MIXTRAL, experts=_MIXTRAL_EXPERTS, rotated=True,
            integers=_chosen("num_local_experts"),
        ),
    ),
    "falcon": (
        "blk.0.attn_norm_2.weight",
        replace(
            ARCHITECTURES["falcon"],
            names={**_FALCON, **_FALCON_NORMS},
            fixed=(
                ("num_ln_in_parallel_attn", 2, 2), *ARCHITECTURES["falcon"].fixed[:1],
                *ARCHITECTURES["falcon"].fixed[2:],
            ),
        ),
    ),
}  # fmt: skip
"""The kind that an architecture is where a file has a tensor, and that tensor."""


def architecture_of(name: str, tensors: Container[str]) -> Architecture:
    """Return a known architecture as it is in a file with these tensors."""
    marker, variant = VARIANTS.get(name, ("", ARCHITECTURES[name]))
    return variant if marker in tensors else ARCHITECTURES[name]
