"""Language models as embedders, and the norm of sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.errors import ModelError
from runtime.causal_embedders import TEXTS, embedded_by_transformers, save_embedder
from runtime.tiny_bert import WIDTH, module, save_sentence_bert, write_json

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")


@pytest.fixture(scope="module", params=["Qwen3Model", "Qwen3ForCausalLM"])
def folder(request, tmp_path_factory):
    """A tiny Qwen3-Embedding: the last token, normalized; saved with and without its head."""
    path = save_embedder(tmp_path_factory.mktemp("causal") / "m", request.param, {}, 5)
    prompts = {"prompts": {"query": "query : "}, "similarity_fn_name": "cosine"}
    write_json(path / "config_sentence_transformers.json", prompts)
    return path


def test_the_last_token_of_a_language_model(folder, backend):
    model = gptrs.load_model(folder, backend=backend.name)
    assert model.capabilities == {"causal_lm", "hidden_states", "text_embedder"}
    found = gptrs.embed(model, TEXTS)
    np.testing.assert_allclose(found, embedded_by_transformers(folder, model, TEXTS), atol=1e-5)
    query = gptrs.embed(model, TEXTS[:1], prompt_name="query")
    prompted = embedded_by_transformers(folder, model, ["query : " + TEXTS[0]])
    np.testing.assert_allclose(query, prompted, atol=1e-5)
    assert len(gptrs.generate(model, [4, 5], max_tokens=2, ignore_eos=True).token_ids) == 2


def test_a_body_without_a_head_of_words_embeds_and_writes_nothing(tmp_path):
    """Such as E5-Mistral: `MistralModel`, untied, so that no weights make up a head."""
    settings: dict[str, object] = {"tie_word_embeddings": False, "sliding_window": 4}
    save_embedder(tmp_path, "MistralModel", settings, 6)
    model = gptrs.load_model(tmp_path, backend="ref")
    assert model.capabilities == {"hidden_states", "text_embedder"}
    found = gptrs.embed(model, TEXTS)
    np.testing.assert_allclose(found, embedded_by_transformers(tmp_path, model, TEXTS), atol=1e-5)
    said = r"cannot generate text; it offers: hidden_states, text_embedder \(`gptrs embed`\)"
    with pytest.raises(ModelError, match=said):
        gptrs.generate(model, "a", max_tokens=2)


def test_a_language_model_without_modules_embeds_nothing(folder):
    plain = folder.parent / "plain"
    if not plain.exists():
        plain.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (plain / name).write_bytes((folder / name).read_bytes())
    model = gptrs.load_model(plain, backend="ref")
    with pytest.raises(ModelError, match="cannot embed texts"):
        gptrs.embed(model, ["a"])


def test_a_norm_after_the_pooling(tmp_path):
    pooling: dict[str, object] = {"pooling_mode": "mean"}
    plain = save_sentence_bert(tmp_path / "plain", pooling)
    normed = save_sentence_bert(tmp_path / "normed", pooling, module("LayerNorm", "2_LayerNorm"))
    random = np.random.default_rng(2)
    weight, bias = random.normal(0, 1, (2, WIDTH)).astype(np.float32)
    write_json(normed / "2_LayerNorm" / "config.json", {"dimension": WIDTH})
    path = normed / "2_LayerNorm" / "model.safetensors"
    save_file({"norm.weight": weight, "norm.bias": bias}, path)
    before, after = (
        gptrs.embed(gptrs.load_model(each, backend="ref"), TEXTS) for each in (plain, normed)
    )
    expected = torch.nn.functional.layer_norm(
        torch.from_numpy(before), (WIDTH,), torch.from_numpy(weight), torch.from_numpy(bias)
    )
    np.testing.assert_allclose(after, expected.numpy(), atol=1e-5)
    save_file({"norm.weight": weight}, path)
    with pytest.raises(ModelError, match=r"`dimension` .* does not fit the weights"):
        gptrs.embed(gptrs.load_model(normed, backend="ref"), TEXTS)
