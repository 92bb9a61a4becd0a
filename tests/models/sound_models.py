"""Folders of tiny Moonshines as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

SIZES: dict[str, object] = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 36,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
    "max_position_embeddings": 90,
    "decoder_start_token_id": 3,
    "bos_token_id": 3,
    "eos_token_id": 2,
}
CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "awkward": {
        "encoder_num_hidden_layers": 3,
        "decoder_num_hidden_layers": 1,
        "encoder_num_attention_heads": 5,
        "decoder_num_attention_heads": 5,
        "encoder_hidden_act": "relu",
        "decoder_hidden_act": "gelu",
        "attention_bias": True,
        "pad_head_dim_to_multiple_of": 16,
        "rope_parameters": {
            "rope_type": "linear",
            "rope_theta": 500.0,
            "factor": 1.7,
            "partial_rotary_factor": 0.5,
        },
        "tie_word_embeddings": False,
    },
}
"""Settings; the heads of the first have 20 components of which 18 rotate."""


def save_moonshine(folder: Path, case: str = "plain", seed: int = 0) -> Path:
    """Save a model with random weights, its extractor and a tokenizer."""
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    config = transformers.MoonshineConfig(**{**SIZES, **CASES[case]})
    torch.manual_seed(seed)
    model = transformers.MoonshineForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter)
            spread = 1.6 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(drawn * spread + ("norm.weight" in name) * 0.9)
        model.model.decoder.embed_tokens.weight.mul_(2.0)
    model.generation_config.max_length = 60
    model.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=case != "plain").save_pretrained(folder)
    words = {f"w{number}": number for number in range(61)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    assert json.loads((folder / "config.json").read_text())["model_type"] == "moonshine"
    return folder
