"""A directory of sentence-transformers around a BERT with random weights, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WIDTH = 16
LAYERS = 2
CONTEXT = 40
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "cat", "dog", "sat", "ran", "on", "mat"),
    *("query", "passage", ":", "red", "blue", "House", "house", "##s", "one", "two", "three"),
)
TRANSFORMER = {
    "idx": 0,
    "name": "0",
    "path": "",
    "type": "sentence_transformers.models.Transformer",
}


def module(kind: str, path: str) -> dict[str, object]:
    """An entry of modules.json."""
    return {"idx": 1, "name": "1", "path": path, "type": f"sentence_transformers.models.{kind}"}


def save_tiny_bert(folder: Path, **settings: object) -> Path:
    """Save config, weights and tokenizer; `settings` are added to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert",
        "vocab_size": len(WORDS),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": CONTEXT,
    }
    write_json(folder / "config.json", {**config, **settings})
    save_file(_weights(), folder / "model.safetensors")
    save_tokenizer(folder / "tokenizer.json")
    return folder


def save_sentence_bert(folder: Path, pooling: dict[str, object], *more: dict[str, object]) -> Path:
    """A tiny BERT with modules.json: the transformer, this pooling, and `more` entries."""
    save_tiny_bert(folder)
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), *more]
    write_json(folder / "modules.json", entries)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


def save_dense(folder: Path, outputs: int, inputs: int = WIDTH, **settings: object) -> None:
    """Save a module `Dense` in `folder`."""
    random = np.random.default_rng(5)
    config = {"in_features": inputs, "out_features": outputs, "bias": True}
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    write_json(folder / "config.json", {**config, **activation, **settings})
    weights = {
        "linear.weight": random.normal(0, 1, (outputs, inputs)).astype(np.float32),
        "linear.bias": random.normal(0, 1, outputs).astype(np.float32),
    }
    save_file(weights, folder / "model.safetensors")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, and make its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def save_tokenizer(path: Path, *, special: bool = True) -> None:
    """A WordPiece tokenizer, with [CLS] and [SEP] around a text unless they are unwanted."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    # What the files say of padding and truncation is for training.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(path))


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    weights: dict[str, np.ndarray] = {}

    def affine(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, 0.4, (outputs, inputs))
        weights[f"{name}.bias"] = random.normal(0, 0.2, outputs)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.uniform(0.5, 1.5, WIDTH)
        weights[f"{name}.bias"] = random.normal(0, 0.2, WIDTH)

    for name, count in (("word", len(WORDS)), ("position", CONTEXT), ("token_type", 2)):
        table = random.normal(0, 0.6, (count, WIDTH))
        weights[f"embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        scope = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            affine(f"{scope}.attention.self.{name}", WIDTH, WIDTH)
        affine(f"{scope}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{scope}.attention.output.LayerNorm")
        affine(f"{scope}.intermediate.dense", 24, WIDTH)
        affine(f"{scope}.output.dense", WIDTH, 24)
        norm(f"{scope}.output.LayerNorm")
    return {name: array.astype(np.float32) for name, array in weights.items()}
