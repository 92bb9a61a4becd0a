"""BERT agrees with transformers on the same directory, on every backend."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.errors import CheckpointError, ContextLengthError, ModelError
from support.tiny_models import tiny

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

_SIZES = {"vocab_size": 71, "num_hidden_layers": 2, "max_position_embeddings": 48}
_PLAIN: dict[str, object] = {
    **_SIZES,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
VARIANTS: dict[str, dict[str, object]] = {
    "plain": _PLAIN,
    "odd": {
        **_SIZES,
        **{"hidden_size": 35, "num_attention_heads": 7, "intermediate_size": 20},
        **{"num_hidden_layers": 3, "type_vocab_size": 1, "layer_norm_eps": 1e-3},
        **{"hidden_act": "relu", "saved_as": "BertForMaskedLM"},
    },
    "tanh_gelu": {**_PLAIN, "hidden_act": "gelu_new", "num_hidden_layers": 1},
    "half": {**_PLAIN, "saved_dtype": "float16"},
}


def save_bert(folder: Path, **settings: object) -> Path:
    """Save a BERT whose random biases and norms hide no mistake."""
    saved_as = str(settings.pop("saved_as", "BertModel"))
    dtype = str(settings.pop("saved_dtype", "float32"))
    tiny(folder, saved_as, {"initializer_range": 0.3, **settings}, seed=7, dtype=dtype)
    return folder


@lru_cache(maxsize=4)
def reference(folder: Path):
    """The body of the saved model at f32, without the pooler that a head leaves out."""
    model = transformers.BertModel.from_pretrained(
        folder, dtype=torch.float32, add_pooling_layer=False
    )
    return model.eval()


def states_of(folder: Path, tokens: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """The embeddings and the states after each layer, [B, T, C]."""
    with torch.no_grad():
        output = reference(folder)(
            torch.from_numpy(tokens),
            attention_mask=torch.from_numpy(mask.astype(np.int64)),
            output_hidden_states=True,
        )
    return [state.numpy() for state in output.hidden_states]


def batch(lengths: tuple[int, ...], vocabulary: int = 71) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and their mask, padded at the right."""
    tokens = np.random.default_rng(1).integers(0, vocabulary, (len(lengths), max(lengths)))
    mask = np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]
    return tokens, mask


def assert_close(ours: np.ndarray, theirs: np.ndarray, limit: float = 1e-4) -> None:
    """Each vector, the last axis, differs by at most `limit` of its length."""
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    error = np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1)
    assert (error <= limit * np.linalg.norm(theirs, axis=-1)).all()


@pytest.fixture(scope="session", params=VARIANTS)
def bert_directory(request, tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert") / request.param, **VARIANTS[request.param])


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert") / "same", **_PLAIN)


def embedder_of(folder: Path, backend: str) -> Any:
    return gptrs.load_model(folder, backend=backend).text_embedder()


def test_vectors_of_a_padded_batch(bert_directory, backend_name):
    tokens, mask = batch((13, 1, 6))
    ours = embedder_of(bert_directory, backend_name).encode(tokens, mask)
    theirs = states_of(bert_directory, tokens, mask)[-1]
    assert_close(ours[mask], theirs[mask])
    assert np.isfinite(ours).all()


def test_a_batch_equals_its_texts_alone(plain, backend_name):
    tokens, mask = batch((9, 3, 5))
    embedder = embedder_of(plain, backend_name)
    together = embedder.encode(tokens, mask)
    for row, length in enumerate((9, 3, 5)):
        alone = embedder.encode(tokens[row : row + 1, :length], mask[row : row + 1, :length])
        assert_close(together[row : row + 1, :length], alone, 1e-5)


def test_hidden_states(plain, backend_name):
    tokens, mask = batch((11, 11))
    states = embedder_of(plain, backend_name).hidden_states(tokens)
    assert list(states) == ["embeddings", "layer.0", "layer.1"]
    for ours, theirs in zip(states.values(), states_of(plain, tokens, mask), strict=True):
        assert_close(ours, theirs)


def test_every_weight_of_the_body_is_asked_for(bert_directory):
    model = embedder_of(bert_directory, "ref")
    expected = {name for name, _ in reference(bert_directory).named_parameters()}
    found = {name for name, _ in model.named_tensors() if not name.startswith("head.")}
    assert found == expected


def test_the_first_names_of_norms_are_known(plain, tmp_path):
    from safetensors.numpy import load_file, save_file

    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in load_file(plain / "model.safetensors").items()
    }
    assert sum("gamma" in name for name in renamed) == 5
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((plain / "config.json").read_text())
    tokens, mask = batch((7, 4))
    ours, theirs = (embedder_of(folder, "ref").encode(tokens, mask) for folder in (tmp_path, plain))
    np.testing.assert_array_equal(ours, theirs)


def test_what_it_offers(plain):
    model = gptrs.load_model(plain, backend="ref")
    assert model.capabilities == {"text_embedder", "hidden_states"}
    embedder = model.text_embedder()
    assert (embedder.context_length, embedder.vocab_size) == (48, 71)
    tokens, mask = batch((49,))
    with pytest.raises(ContextLengthError, match="49 tokens do not fit into the context of 48"):
        embedder.encode(tokens, mask)
    with pytest.raises(ModelError, match="has no logits; it offers: hidden_states, text_em"):
        model.forward(tokens)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type`.*'absolute' only"),
        ({"is_decoder": True}, "`is_decoder` of a `bert` model is supported as False only"),
        ({"add_cross_attention": True}, "`add_cross_attention`"),
        ({"quantization_config": {}}, "`quantization_config`"),
        ({"hidden_act": "prelu"}, "`hidden_act`.*must be one of gelu"),
        ({"num_attention_heads": 5}, r"`hidden_size` \(32\) of a bert model is not a multiple"),
        (
            {"num_hidden_layers": 3},
            r"no tensor `encoder\.layer\.2\.attention\.self\.query\.weight`",
        ),
        ({"vocab_size": 70}, r"word_embeddings\.weight`.*needs `f32\[70, 32\]`"),
        ({"hidden_size": "32"}, "`hidden_size`.*must be an integer >= 1"),
    ],
)
def test_what_does_not_fit_is_named(plain, tmp_path, settings, message):
    config = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
    (tmp_path / "model.safetensors").write_bytes((plain / "model.safetensors").read_bytes())
    with pytest.raises((ModelError, CheckpointError), match=message):
        gptrs.load_model(tmp_path, backend="ref")
