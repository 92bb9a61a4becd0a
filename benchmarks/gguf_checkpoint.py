"""Writes a GPT-2 or Llama checkpoint with random weights as GGUF, which llama.cpp reads as well."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from gguf.quants import quantize
from safetensors import safe_open

_GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, path: Path, kind: str | None = None) -> Path:
    """Write the checkpoint in `folder` without a vocabulary; returns `path`.

    Its matrices get the type `kind`, such as Q4_0, without it their own. Heads of queries and keys
    stay in the order of the checkpoint: weights are random, and time does not depend on it.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_gpt2 = config["model_type"] == "gpt2"
    writer = gguf.GGUFWriter(path, config["model_type"])
    (_gpt2_settings if is_gpt2 else _llama_settings)(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118
            weight = file.get_tensor(name)
            turned = is_gpt2 and ".c_" in name and weight.ndim == 2
            _add(writer, _converted(name, is_gpt2), weight.T if turned else weight, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gpt2_settings(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(1e-5)


def _llama_settings(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(1e-6)


def _converted(name: str, is_gpt2: bool) -> str:
    stem, _, kind = name.rpartition(".")
    block, names = "", _GPT2 if is_gpt2 else _LLAMA
    before = "h." if is_gpt2 else "model.layers."
    if stem.startswith(before):
        layer, _, stem = stem.removeprefix(before).partition(".")
        block = f"blk.{layer}."
    return f"{block}{names[stem]}.{kind}"


def _add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: str | None) -> None:
    if weight.ndim != 2 or "position" in name:
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32))
    elif kind is not None:
        type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(weight.astype(np.float32), type), raw_dtype=type)
    elif weight.dtype == ml_dtypes.bfloat16:
        bits = np.ascontiguousarray(weight).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32))
