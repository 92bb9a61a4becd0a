"""What `gptrs train` is given to train the demo model: a folder, data, and options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from msgspec import Struct
from tokenizers import Tokenizer

from demo_model.tokenizer import END_OF_TEXT, end_of_text_id

TEMPERATURE = 0.8
TOP_K = 40
CONFIG, TRAIN, VALID = "config", "train.bin", "valid.bin"
"""The names of the folder and the files in a folder of `write_inputs`."""


class ModelShape(Struct, frozen=True):
    """The shape of the model: 3.2 million parameters, 6.3 MB as f16."""

    vocab_size: int = 2048
    context: int = 512
    width: int = 192
    layers: int = 6
    heads: int = 3


class Plan(Struct, frozen=True):
    """How long and how to train.

    In the first hundreds of steps, AdamW alone needs some three times as many as Muon for the same
    held-out loss. The rate falls to 0, which is worth more than a tenth of the steps.
    """

    steps: int = 6000
    batch: int = 4
    rate: float = 3e-3
    warmup: int = 120
    weight_decay: float = 0.1
    seed: int = 0
    threads: int = 1
    precision: str = "bf16"
    backend: str = "numba"

    def command(self, inputs: Path, out: Path, *, resume: bool) -> list[str]:
        """Return the words of `gptrs train` for the `inputs` of `write_inputs`."""
        values = {
            "data": inputs / TRAIN, "valid": inputs / VALID, "out": out, "optimizer": "muon",
            "steps": self.steps, "batch": self.batch, "rate": self.rate, "least-rate": 0.0,
            "warmup": min(self.warmup, self.steps // 2), "weight-decay": self.weight_decay,
            "seed": self.seed, "threads": self.threads, "precision": self.precision,
            "backend": self.backend, "eval-batches": 8,
        }  # fmt: skip
        options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        return ["train", str(inputs / CONFIG), *options, *(["--resume"] if resume else [])]


def model_config(shape: ModelShape, end_of_text: int) -> dict[str, object]:
    """Return the settings of a GPT-2 as transformers writes them, without dropout."""
    return {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "dtype": "float32",
        "embd_pdrop": 0.0,
        "eos_token_id": end_of_text,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "model_type": "gpt2",
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_layer": shape.layers,
        "n_positions": shape.context,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocab_size,
    }


def write_inputs(
    folder: Path,
    shape: ModelShape,
    tokenizer: Tokenizer,
    train_ids: np.ndarray,
    held_out_ids: np.ndarray,
) -> None:
    """Write the folder of the model, without weights, and both texts as tokens."""
    end = end_of_text_id(tokenizer)
    config = folder / CONFIG
    config.mkdir(parents=True, exist_ok=True)
    settings = {
        "config.json": model_config(shape, end),
        "generation_config.json": {
            "bos_token_id": end,
            "do_sample": True,
            "eos_token_id": end,
            "temperature": TEMPERATURE,
            "top_k": TOP_K,
        },
        # What transformers reads beside `tokenizer.json`: the class and the special tokens.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.context,
        },
    }
    for name, value in settings.items():
        (config / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(config / "tokenizer.json"))
    for name, ids in ((TRAIN, train_ids), (VALID, held_out_ids)):
        ids.astype("<u2").tofile(folder / name)
