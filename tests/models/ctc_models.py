"""Folders of tiny speech models with CTC as transformers saves them, and sounds for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

CONVOLUTIONS = {
    "conv_dim": [8, 12, 16],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 4,
}
"""20 samples a frame; the first one has 30."""
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 14,
    "pad_token_id": 0,
    **CONVOLUTIONS,
}
LAYERS = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "base": ("Wav2Vec2", {}),
    "large": ("Wav2Vec2", LAYERS),
    "mixed": (
        "Wav2Vec2",
        {
            "feat_extract_norm": "layer",
            "hidden_act": "relu",
            "feat_extract_activation": "silu",
            "layer_norm_eps": 1e-3,
            "num_conv_pos_embeddings": 5,
            "num_conv_pos_embedding_groups": 1,
        },
    ),
    "adapters": ("Wav2Vec2", {**LAYERS, "adapter_attn_dim": 6}),
    "hubert": ("Hubert", {}),
    "hubert of batches": (
        "Hubert",
        {**LAYERS, "conv_pos_batch_norm": True, "feat_proj_layer_norm": False},
    ),
    "unispeech": ("UniSpeech", LAYERS),
    "unispeech-sat": ("UniSpeechSat", {"do_stable_layer_norm": True, "hidden_act": "relu"}),
}
"""Kind and settings; awkward ones are meant to be."""
LETTERS = ["[PAD]", "|", "E", "T", "A", "AB", "'", "N", "S", ".", "<s>", "</s>", "O"]
"""One fewer than the model has tokens."""


def save_ctc(folder: Path, case: str = "base", seed: int = 0, **tokenizer: object) -> Path:
    """Save a model with random weights, its extractor and its vocabulary.

    The head is such that each token is the best one of some frames.
    """
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    kind, settings = CASES[case]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCTC")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter)
            spread = 1.6 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(drawn * spread + ("norm.weight" in name) * 0.9)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.4, 1.5)
        scores = model.eval()(torch.from_numpy(sound(3000)[None])).logits[0]
        scale = 5 / scores.std(0)
        model.lm_head.weight *= scale[:, None]
        model.lm_head.bias.copy_((model.lm_head.bias - scores.mean(0)) * scale)
    model.save_pretrained(folder)
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    given = {"pad_token": "[PAD]", **tokenizer}
    made = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), **given)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=case != "mixed")
    transformers.Wav2Vec2Processor(extractor, made).save_pretrained(folder)
    return folder


def sound(samples: int, seed: int = 0) -> np.ndarray:
    """Noise whose loudness changes, f32 [N]."""
    random = np.random.default_rng(seed)
    loud = 0.3 + 0.2 * np.sin(np.arange(samples) / 90)
    return (random.standard_normal(samples) * loud + 0.05).astype(np.float32)
