"""The architectures of llama.cpp that are kinds here: what each calls the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the tensors of an architecture are called and laid out.

    `names` has, for each name of llama.cpp without `blk.N.` and its suffix, that of the model
    without `layers` and the number. The matrices of `turned` are stored there as [outputs, inputs]
    and here as [inputs, outputs]. `rotated` says that the rows of each head of queries and keys are
    in the order of interleaved rotary embeddings there.
    """

    names: Mapping[str, str]
    layers: str = "model.layers"
    turned: tuple[str, ...] = ()
    rotated: bool = False


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

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(_LLAMA, rotated=True),
    "qwen2": Architecture(_LLAMA),
    "qwen3": Architecture(_LLAMA),
    "gpt2": Architecture(_GPT2, "transformer.h", _GPT2_TURNED),
}
"""By `general.architecture`."""
