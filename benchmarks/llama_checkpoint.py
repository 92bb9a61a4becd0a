"""Makes the directory of a Llama model in bf16 with random weights, a tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.safetensors import write_safetensors
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

SIZES = {
    # TinyLlama and Llama 3.2 1B.
    "1.1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "1.2B": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 8000,
        "max_position_embeddings": 2048,
    },
}
_NOISE = 1 << 22


def save_llama(folder: Path, size: str) -> Path:
    """Write the model of a size in `SIZES`, a tensor at a time; returns its folder."""
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "tie_word_embeddings": False, **SIZES[size]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    noise = np.random.default_rng(0).standard_normal(_NOISE, np.float32) * np.float32(0.03)
    weights = noise.astype(ml_dtypes.bfloat16)
    tensors = [_tensor(name, shape, weights) for name, shape in _shapes(SIZES[size]).items()]
    with (folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, tensors)
    return folder


def _shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    narrow = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width)
    }
    for layer in range(config["num_hidden_layers"]):
        block = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (narrow, width),
            "self_attn.v_proj": (narrow, width),
            "self_attn.o_proj": (width, width),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (width,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def _tensor(name: str, shape: tuple[int, ...], noise: np.ndarray) -> OutgoingTensor:
    """Norms are 1, all else is noise that begins elsewhere for each name."""
    size = int(np.prod(shape))

    def parts() -> Iterator[np.ndarray]:
        if len(shape) == 1:
            yield np.ones(size, noise.dtype)
            return
        start = sum(name.encode()) * 7919 % noise.size // 2 * 2
        left = size
        while left:
            part = noise[start : start + left]
            yield part
            left, start = left - part.size, 0

    return OutgoingTensor(name, TensorType(dtypes.bf16, shape), parts)
