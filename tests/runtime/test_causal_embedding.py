"""Language models as embedders, and the norm of sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.errors import ModelError
from runtime.tiny_bert import (
    TRANSFORMER,
    WIDTH,
    WORDS,
    module,
    save_sentence_bert,
    save_tokenizer,
    write_json,
)

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")
TEXTS = ["the cat sat on the mat", "a dog", "red houses two three one"]


@pytest.fixture(scope="module", params=["Qwen3Model", "Qwen3ForCausalLM"])
def folder(request, tmp_path_factory):
    """A tiny Qwen3-Embedding: the last token, normalized; saved with and without its head."""
    path = tmp_path_factory.mktemp("causal") / request.param
    torch.manual_seed(5)
    sizes = {
        **{"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24, "head_dim": 8},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"initializer_range": 0.4, "tie_word_embeddings": True, "max_position_embeddings": 64},
    }
    getattr(transformers, request.param)(transformers.Qwen3Config(**sizes)).save_pretrained(path)
    save_tokenizer(path / "tokenizer.json")
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]
    write_json(path / "modules.json", entries)
    write_json(path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    prompts = {"prompts": {"query": "query : "}, "similarity_fn_name": "cosine"}
    write_json(path / "config_sentence_transformers.json", prompts)
    return path


def _expected(folder, model, texts):
    body = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    for text in texts:
        with torch.no_grad():
            found = body(torch.tensor([model.tokenizer.encode(text)])).last_hidden_state[0, -1]
        vectors.append((found / found.norm()).numpy())
    return np.stack(vectors)


def test_the_last_token_of_a_language_model(folder, backend):
    model = gptrs.load_model(folder, backend=backend.name)
    assert model.capabilities == {"causal_lm", "hidden_states", "text_embedder"}
    found = gptrs.embed(model, TEXTS)
    np.testing.assert_allclose(found, _expected(folder, model, TEXTS), atol=1e-5)
    query = gptrs.embed(model, TEXTS[:1], prompt_name="query")
    prompted = _expected(folder, model, ["query : " + TEXTS[0]])
    np.testing.assert_allclose(query, prompted, atol=1e-5)
    assert len(gptrs.generate(model, [4, 5], max_tokens=2, ignore_eos=True).token_ids) == 2


def test_a_body_without_a_head_of_words_embeds_and_writes_nothing(tmp_path):
    """Such as E5-Mistral: `MistralModel`, untied, so that no weights make up a head."""
    sizes = {
        **{"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24, "head_dim": 8},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"initializer_range": 0.4, "tie_word_embeddings": False, "sliding_window": 4},
    }
    torch.manual_seed(6)
    transformers.MistralModel(transformers.MistralConfig(**sizes)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path / "tokenizer.json")
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]
    write_json(tmp_path / "modules.json", entries)
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    model = gptrs.load_model(tmp_path, backend="ref")
    assert model.capabilities == {"hidden_states", "text_embedder"}
    found = gptrs.embed(model, TEXTS)
    np.testing.assert_allclose(found, _expected(tmp_path, model, TEXTS), atol=1e-5)
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
