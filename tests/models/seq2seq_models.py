"""What the tests of encoder-decoders ask of transformers: directories, logits, greedy texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

SMALL: dict[str, object] = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 64,
}
T5: dict[str, object] = {
    "vocab_size": 61,
    "d_model": 20,
    "d_kv": 6,
    "d_ff": 28,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 25,
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 of a gate": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    "t5 with a head": ("T5ForConditionalGeneration", {**T5, "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu"}),
    "umt5": ("UMT5ForConditionalGeneration", T5),
    "umt5 with a head": (
        "UMT5ForConditionalGeneration",
        {**T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
    ),
    "bart": ("BartForConditionalGeneration", {**SMALL, "scale_embedding": True}),
    "plbart": ("PLBartForConditionalGeneration", SMALL),
    "mbart": ("MBartForConditionalGeneration", {**SMALL, "activation_function": "relu"}),
    "marian": ("MarianMTModel", {**SMALL, "decoder_start_token_id": 60, "pad_token_id": 60}),
    "marian of two vocabularies": (
        "MarianMTModel",
        {
            **SMALL,
            "decoder_start_token_id": 60,
            "pad_token_id": 60,
            "decoder_vocab_size": 70,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
        },
    ),
    "pegasus": ("PegasusForConditionalGeneration", SMALL),
    "m2m_100": ("M2M100ForConditionalGeneration", {**SMALL, "scale_embedding": True}),
    "blenderbot": ("BlenderbotForConditionalGeneration", SMALL),
}
"""The class of each directory in transformers, and its settings."""


def save_seq2seq(folder: Path, case: str, seed: int = 5, **more: object) -> Path:
    """Save a case with random weights, biases and norms."""
    made, settings = CASES[case]
    return save_seq2seq_of(folder, made, {**settings, **more}, seed)


def save_seq2seq_of(folder: Path, made: str, settings: Mapping[str, object], seed: int) -> Path:
    """Save the class `made` of transformers with random weights, biases and norms."""
    import torch
    import transformers

    settings = {"decoder_start_token_id": 2, "eos_token_id": 2, **settings}
    kind = getattr(transformers, made)
    torch.manual_seed(seed)
    model = kind(kind.config_class(**settings))
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name or each.requires_grad:
                each.copy_(torch.randn_like(each) * 0.35 + (each.ndim == 1) * 0.4)
    model.save_pretrained(folder)
    return folder


@lru_cache(maxsize=4)
def reference(folder: Path) -> Any:
    """The model in `folder` as transformers loads it, at f32."""
    import torch
    import transformers

    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    return loaded.eval()


def torch_logits(folder: Path, source: np.ndarray, mask: np.ndarray, text: np.ndarray):
    """Logits [B, T, V] after each token of texts [B, T] about sources [B, S]."""
    import torch

    with torch.no_grad():
        return (
            reference(folder)(
                input_ids=torch.from_numpy(source),
                attention_mask=torch.from_numpy(mask).long(),
                decoder_input_ids=torch.from_numpy(text),
            )
            .logits.float()
            .numpy()
        )


def torch_text(folder: Path, source: list[int], count: int, **settings: object) -> list[int]:
    """The tokens that transformers writes greedily about a source, at most `count`."""
    import torch

    with torch.no_grad():
        output = reference(folder).generate(
            torch.tensor([source]),
            attention_mask=torch.ones((1, len(source)), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            num_beams=1,
            use_cache=False,  # its cache has as many layers as the encoder
            **settings,
        )
    return output[0, 1:].tolist()
