"""The architectures of llama.cpp that are kinds here: what each calls the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.quick_dataclass import dataclass

RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the tensors of an architecture are called and laid out, and its own settings.

    `names` has, for each name of llama.cpp without `blk.N.` and its suffix, that of the model
    without `layers` and the number. The matrices of `turned` are stored there as [outputs, inputs]
    and here as [inputs, outputs]. `rotated` says that the rows of each head of queries and keys are
    in the order of interleaved rotary embeddings there. `epsilon` is the key of the epsilon of
    norms and what config.json calls it. `numbers` are more settings: keys there, names here, and
    defaults. `biases` are settings that are true where a tensor is in the file. `activations` are
    those that llama.cpp computes. A `share` is that of a head which rotates by default, in kinds
    where it may be less than all. `offset` is what the weights of norms have more there. With a
    `window` there is a key for the sliding window.
    """

    kind: str
    names: Mapping[str, str]
    layers: str = "model.layers"
    turned: tuple[str, ...] = ()
    rotated: bool = False
    epsilon: tuple[str, str] = (RMS_EPSILON, "rms_norm_eps")
    numbers: tuple[tuple[str, str, float], ...] = ()
    biases: tuple[tuple[str, str], ...] = ()
    activations: tuple[str, ...] = ("silu",)
    share: float | None = None
    offset: float = 0.0
    window: bool = False

    def offset_of(self, stem: str, suffix: str) -> float:
        """Return what GGUF adds to each element; `stem` is the name without `blk.N.` and suffix."""
        return self.offset if stem.endswith("norm") and suffix == "weight" else 0.0


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
_QUERY, _UP = "blk.0.attn_q.bias", "blk.0.ffn_up.bias"
_OF_ALL = (("attention_bias", _QUERY), ("mlp_bias", _UP))

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _LLAMA, rotated=True, biases=_OF_ALL),
    "qwen2": Architecture("qwen2", _LLAMA),
    "qwen3": Architecture("qwen3", _LLAMA),
    "gpt2": Architecture("gpt2", _GPT2, "transformer.h", _GPT2_TURNED),
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
        "gemma2", _GEMMA2, activations=("gelu_pytorch_tanh",), offset=1.0, window=True,
        numbers=(
            ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", "final_logit_softcapping", 30.0),
        ),
    ),
}  # fmt: skip
"""By `general.architecture`."""
