"""Folders of tiny language models that embed texts, and what transformers makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from gptrs import LoadedModel
from runtime.tiny_bert import TRANSFORMER, WORDS, module, save_tokenizer, write_json
from support.tiny_models import tiny

TEXTS = ["the cat sat on the mat", "a dog", "red houses two three one"]
SIZES: dict[str, object] = {
    **{"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24, "head_dim": 8},
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"initializer_range": 0.4, "tie_word_embeddings": True, "max_position_embeddings": 64},
}


def save_embedder(path: Path, made: str, settings: Mapping[str, object], seed: int) -> Path:
    """Save a class of transformers as sentence-transformers does: the last token, normalized."""
    tiny(path, made, {**SIZES, **settings}, seed=seed)
    save_tokenizer(path / "tokenizer.json")
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]
    write_json(path / "modules.json", entries)
    write_json(path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    return path


def embedded_by_transformers(folder: Path, model: LoadedModel, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors [B, D] of texts, each one alone, whose tokens are those of `model`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    body = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in texts:
        with torch.no_grad():
            found = body(torch.tensor([model.tokenizer.encode(text)])).last_hidden_state[0, -1]
        vectors.append((found / found.norm()).numpy())
    return np.stack(vectors)
