"""A GPT-2 directory with random weights and a byte-level tokenizer, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|end|>"
TEXTS = [
    "def main():\n    return 0\n",
    "the cat and the dog and the bird",
    "für Elise, naïve café, 你好世界 今天天气很好",
    "smile 😀 family 👨‍👩‍👧 flag 🇯🇵",
]


def train_tokenizer(vocab_size: int = 300) -> Tokenizer:
    """Byte-level BPE: every byte is a token, so that a character can fall into several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def save_tiny_gpt2(folder: Path, **settings: object) -> Path:
    """Save a model with `settings` of config.json replaced; `tokenizer=False` leaves that out."""
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer()
    with_tokenizer = settings.pop("tokenizer", True)
    generation = settings.pop("generation_config", {})
    config: dict[str, object] = {
        "model_type": "gpt2",
        "vocab_size": tokenizer.get_vocab_size(),
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    if with_tokenizer:
        tokenizer.save(str(folder / "tokenizer.json"))
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(config: dict) -> dict[str, np.ndarray]:
    width = config["n_embd"]
    shapes = {
        "wte.weight": (config["vocab_size"], width),
        "wpe.weight": (config["n_positions"], width),
    }
    for layer in range(config["n_layer"]):
        block = {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width),
            "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width),
            "mlp.c_proj.bias": (width,),
        }
        shapes.update({f"h.{layer}.{name}": shape for name, shape in block.items()})
    shapes.update({"ln_f.weight": (width,), "ln_f.bias": (width,)})
    random = np.random.default_rng(5)
    return {
        f"transformer.{name}": random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
