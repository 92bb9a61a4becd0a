"""Makes the directory of a GPT-2 model with random weights, without torch and without a network."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SIZES = {
    "124M": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
    "tiny": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 1024},
}
_DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}


def save_gpt2(folder: Path, size: str = "124M", dtype: str = "f32") -> Path:
    """Save the model of a size in `SIZES` with weights "f32" or "bf16"; returns the folder."""
    folder.mkdir(parents=True)
    settings = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
        "activation_function": "gelu_new",
        "bos_token_id": 0,
        "eos_token_id": 0,
        **SIZES[size],
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    random = np.random.default_rng(0)
    weights = {
        name: _weight(random, name, shape).astype(_DTYPES[dtype])
        for name, shape in _shapes(SIZES[size]).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    width = config["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], width),
        "wpe.weight": (config["n_positions"], width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    for layer in range(config["n_layer"]):
        block = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        block |= {"mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
        for name, shape in block.items():
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[1:]
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{layer}.{name}.weight"] = shapes[f"h.{layer}.{name}.bias"] = (width,)
    return shapes


def _weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = random.standard_normal(shape, np.float32) * np.float32(0.02)
    return noise + 1 if ".ln_" in f".{name}" and name.endswith("weight") else noise
