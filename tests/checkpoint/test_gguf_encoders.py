"""GGUF files of text encoders have the vectors of transformers and the tokens of BERT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import gptrs
from checkpoint.test_gguf_kinds import Changes, converted
from checkpoint.test_gguf_writing import SIZES
from fuzzing.tiny_gguf import Value
from gptrs.errors import ModelError
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.gguf_tokenizer import GgufTokenizer

pytest.importorskip("gguf", reason="the package gguf is not installed")
TEXTS = [[2, 11, 9, 30, 4, 3], [2, 7, 3]]


def without_pooler(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if not name.startswith("pooler."):
        yield name, array


def without_padding(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield positions from that of the first token on."""
    yield from without_pooler(name, array[2:] if "position_embeddings" in name else array)


NO_KEYS: dict[str, Value | None] = {
    "attention__head_count_kv": None, "attention__key_length": None, "attention__causal": False,
    "attention__value_length": None, "rope__dimension_count": None, "rope__freq_base": None,
    "attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": 1e-12,
}  # fmt: skip
DISTIL = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}
CASES: dict[str, tuple[str, dict[str, Any], str, Changes, dict[str, Value | None]]] = {
    "bert": ("bert", {}, "bert", without_pooler, NO_KEYS),
    "distilbert": ("distilbert", DISTIL, "bert", without_pooler, {**NO_KEYS, "block_count": 2}),
    "roberta": (
        "xlm-roberta", {"max_position_embeddings": 130, "layer_norm_eps": 1e-5, "pad_token_id": 1,
                        "type_vocab_size": 1},
        "bert", without_padding, {**NO_KEYS, "attention__layer_norm_epsilon": 1e-5},
    ),
    "nomic_bert": (
        "nomic_bert", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        "nomic-bert", without_pooler, {**NO_KEYS, "rope__freq_base": 1000.0},
    ),
}  # fmt: skip
"""The kind, its settings, the architecture, how tensors change, and settings of the file."""


GEMMA: dict[str, Any] = {
    "use_bidirectional_attention": True, "num_hidden_layers": 7, "query_pre_attn_scalar": 16,
    "sliding_window": 4, "num_key_value_heads": 2, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def with_dense(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield norms plus 1, and the layers after the pooling, too."""
    name = name if name.startswith("model.") else f"model.{name}"
    yield name, array + 1 if name.endswith("norm.weight") else array
    if name == "model.norm.weight":
        yield from zip(("dense_2.weight", "dense_3.weight"), DENSE, strict=True)


DENSE = [np.random.default_rng(3).normal(size=shape) / 8 for shape in ((96, 64), (48, 96))]


def test_layers_after_the_pooling_of_embedding_gemma(tmp_path: Path) -> None:
    folder = saved(tmp_path / "folder", "gemma3_text", **GEMMA)
    sizes = {"block_count": 7, "rope__freq_base": 1e6, "attention__sliding_window": 4}
    path = converted(folder, "gemma-embedding", with_dense, **sizes, pooling_type=1)
    wanted = np.stack([states(folder, text).mean(axis=0) for text in TEXTS]) @ DENSE[0].T
    wanted = wanted @ DENSE[1].T
    assert not [name for name in find_model(path).weights.names() if "dense" in name]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    model = gptrs.load_model(path, backend="ref")
    np.testing.assert_allclose(gptrs.embed(model, TEXTS), wanted, atol=2e-5)


def saved(folder: Path, kind: str, **settings: Any) -> Path:
    """Save a tiny encoder of transformers with random weights."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 4}
    model = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
    )
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    return folder


def states(folder: Path, text: list[int]) -> np.ndarray:
    """Return the vectors of tokens that transformers computes, [T, C]."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([text])).last_hidden_state[0].numpy()


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_pooled_as_the_file_says_and_have_length_1(tmp_path: Path, case: str) -> None:
    kind, settings, architecture, changes, own = CASES[case]
    folder = saved(tmp_path / "folder", kind, **settings)
    for number, pool in {
        1: lambda rows: rows.mean(axis=0), 2: lambda rows: rows[0], 3: lambda rows: rows[-1]
    }.items():  # fmt: skip
        path = converted(folder, architecture, changes, **own, pooling_type=number)
        wanted = np.stack([pool(states(folder, text)) for text in TEXTS])
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        model = gptrs.load_model(path, backend="ref")
        np.testing.assert_allclose(gptrs.embed(model, TEXTS), wanted, atol=2e-5)
        assert not [name for name in find_model(path).config if "pooling" in name]


def test_a_bert_that_sees_only_earlier_tokens_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "folder", "bert")
    path = converted(folder, "bert", without_pooler, **{**NO_KEYS, "attention__causal": True})
    with pytest.raises(ModelError, match="causal"):
        find_model(path)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["\u2581the", "\u2581cafe", "s", "\u2581!", "[unused0]", "\u2581c"]


def tokenizer(model: str, tokens: list[str], types: list[int], **more: Any) -> Tokenizer:
    """Return the tokenizer of a file with these tokens."""
    metadata = {
        "tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        **{f"tokenizer.ggml.{key.replace('__', '.')}": value for key, value in more.items()},
    }  # fmt: skip
    return Tokenizer.from_str(GgufTokenizer(metadata, "in `x`").tokenizer_json().decode())


@pytest.mark.parametrize("cased", [False, True])
def test_words_are_cut_as_bert_does(cased: bool) -> None:
    """A vocabulary with all capital letters is cased where the file does not say."""
    capitals = [f"\u2581{chr(code)}" for code in range(ord("A"), ord("Z") + 1)] if cased else []
    tokens = [*SPECIAL, *WORDS, *capitals]
    named = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
    read = tokenizer("bert", tokens, [3] * 4 + [1] * (len(tokens) - 4), **named)
    assert read.encode("the cafes!").ids == [2, 4, 5, 6, 7, 3]
    assert read.encode("The Caf\u00e9s").ids == ([2, 1, 1, 3] if cased else [2, 4, 5, 6, 3])
    assert read.encode("[unused0]").ids == [2, 1, 1, 1, 3]
    said = tokenizer("bert", tokens, [3] * 4 + [1] * (len(tokens) - 4), **named,
                     normalizer__lowercase=True)  # fmt: skip
    assert said.encode("The Caf\u00e9s").ids == [2, 4, 5, 6, 3]


def test_unigrams_are_the_likeliest_pieces_of_words() -> None:
    """Fillers do not make unknown characters cheaper than known pieces."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581ab", "a", "b", "\u2581a", "[PAD9]"]
    scores = np.array([0, 0, 0, 0, -2, -6, -4, -4, -3, -10000], np.float32)
    read = tokenizer(
        "t5", tokens, [3, 3, 3, 2, 1, 1, 1, 1, 1, 5], scores=scores, bos_token_id=0, eos_token_id=2,
        unknown_token_id=3, add_bos_token=True, add_eos_token=True,
    )  # fmt: skip
    assert read.encode("ab  a b").ids == [0, 5, 8, 4, 7, 2]
    assert read.encode("aqb").ids == [0, 8, 3, 7, 2]
