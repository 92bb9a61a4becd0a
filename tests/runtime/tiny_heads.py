"""Directories of a tiny BERT with a head and a tokenizer for pairs, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, processors

from runtime.tiny_bert import WIDTH, WORDS, save_tiny_bert, write_json

_DENSE = {
    "ForSequenceClassification": "bert.pooler.dense",
    "ForMaskedLM": "cls.predictions.transform.dense",
}
VOCABULARY = len(WORDS) + 1  # with the mask


def save_tiny_head(
    folder: Path, architecture: str, labels: tuple[str, ...] = (), **settings: object
) -> Path:
    """A BERT with this head, such as `ForTokenClassification`, and classes of these names."""
    numbers = {name: index for index, name in enumerate(labels)}
    names = {
        "id2label": {str(index): name for name, index in numbers.items()},
        "label2id": numbers,
    }
    config = {"architectures": [f"Bert{architecture}"], "vocab_size": VOCABULARY}
    save_tiny_bert(folder, **config, **(names if labels else {}), **settings)
    random = np.random.default_rng(11)
    body = load_file(folder / "model.safetensors")
    words = body["embeddings.word_embeddings.weight"]
    more = random.normal(0, 0.6, (1, WIDTH)).astype(np.float32)
    body["embeddings.word_embeddings.weight"] = np.concatenate([words, more])
    weights = {f"bert.{name}": array for name, array in body.items()}
    added: dict[str, tuple[int, ...]] = {}
    if architecture in _DENSE:
        added |= {f"{_DENSE[architecture]}.weight": (WIDTH, WIDTH)}
        added |= {f"{_DENSE[architecture]}.bias": (WIDTH,)}
    if architecture == "ForMaskedLM":
        scope = "cls.predictions"
        added |= {f"{scope}.transform.LayerNorm.{part}": (WIDTH,) for part in ("weight", "bias")}
        added |= {f"{scope}.bias": (VOCABULARY,)}
    else:
        added |= {"classifier.weight": (len(labels), WIDTH), "classifier.bias": (len(labels),)}
    for name, shape in added.items():
        weights[name] = random.normal(0, 0.8, shape).astype(np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _save_pair_tokenizer(folder)
    return folder


def _save_pair_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(path))
    named = ("pad", "unk", "cls", "sep", "mask")
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in named}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 24}
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    write_json(folder / "tokenizer_config.json", {**tokens, **kind, **inputs})


def settings_of(folder: Path) -> dict[str, object]:
    """The content of config.json."""
    return json.loads((folder / "config.json").read_text())
