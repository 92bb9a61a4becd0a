"""Classifiers made of language models agree with transformers on the same directories."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from support.tiny_models import tiny

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

SIZES: dict[str, object] = {
    **{"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 36, "num_labels": 3},
    **{"max_position_embeddings": 80, "initializer_range": 0.4, "pad_token_id": 2},
    **{"bos_token_id": 0, "eos_token_id": 1},
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
GPT2: dict[str, object] = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 80}
CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "llama": ("Llama", "Sequence", {"num_labels": 1}),
    "qwen2": ("Qwen2", "Sequence", {**WINDOWS, "use_sliding_window": True}),
    "qwen3": ("Qwen3", "Sequence", {"tie_word_embeddings": True}),
    "qwen3 of tokens": ("Qwen3", "Token", {}),
    "mistral": ("Mistral", "Sequence", {"sliding_window": 6}),
    "gemma2": ("Gemma2", "Sequence", {**WINDOWS, "query_pre_attn_scalar": 11}),
    "gemma3_text": ("Gemma3Text", "Sequence", {**WINDOWS, "query_pre_attn_scalar": 11}),
    "smollm3 of tokens": ("SmolLM3", "Token", {"no_rope_layers": [1, 0]}),
    "gpt2": ("GPT2", "Sequence", {**GPT2, "n_inner": 36}),
    "gpt2 of tokens": ("GPT2", "Token", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_bigcode": ("GPTBigCode", "Sequence", GPT2),
    "gpt_neo of tokens": (
        "GPTNeo",
        "Token",
        {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 7},
    ),
    "gptj": ("GPTJ", "Sequence", {**GPT2, "rotary_dim": 4}),
    "falcon": (
        "Falcon",
        "Sequence",
        {"alibi": True, "multi_query": False, "parallel_attn": False},
    ),
    "falcon of tokens": ("Falcon", "Token", {"alibi": True, "new_decoder_architecture": True}),
    "bloom": ("Bloom", "Sequence", {"n_layer": 2, "n_head": 3}),
    "bloom of tokens": ("Bloom", "Token", {"n_layer": 2, "n_head": 3}),
    "mpt": ("Mpt", "Sequence", {"d_model": 24, "n_layers": 2, "n_heads": 3}),
    "opt": ("OPT", "Sequence", {"ffn_dim": 36, "word_embed_proj_dim": 24}),
    "biogpt": ("BioGpt", "Sequence", {}),
    "biogpt of tokens": ("BioGpt", "Token", {"scale_embedding": False}),
    "qwen3_next": (
        "Qwen3Next",
        "Sequence",
        {
            **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6},
            **{"linear_value_head_dim": 5, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12},
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}
COMPILED = ("qwen2", "qwen3 of tokens", "gemma3_text", "gpt2", "falcon", "biogpt of tokens")


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory, backend_name):
    """A directory for each case, and the model in it."""
    if backend_name != "ref" and request.param not in COMPILED:
        pytest.skip("some are enough where each one compiles")
    kind, head, settings = CASES[request.param]
    given = {**SIZES, **settings}
    if kind == "Falcon":  # it has a property of this name
        del given["head_dim"]
    config = getattr(transformers, f"{kind}Config")(**given)
    made = kind if hasattr(transformers, f"{kind}For{head}Classification") else kind[:6]
    folder = tmp_path_factory.mktemp("heads") / request.param.replace(" ", "_")
    model = tiny(folder, f"{made}For{head}Classification", config, seed=5)
    return folder, model


def test_logits(saved, backend_name):
    folder, theirs = saved
    model = gptrs.load_model(folder, backend=backend_name)
    mask = np.arange(20) < np.array([20, 3, 11])[:, np.newaxis]
    tokens = np.where(mask, np.random.default_rng(1).integers(3, 61, (3, 20)), 2)
    tokens[2, 10] = 2  # the text ends with the token of padding
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(int)))
    if "text_classifier" in model.capabilities:
        ours = model.text_classifier().classify_texts(tokens, np.zeros_like(tokens), mask)
        expected = wanted.logits.numpy()
    else:
        ours = model.token_classifier().classify_tokens(tokens, mask)[mask]
        expected = wanted.logits.numpy()[mask]
    assert "causal_lm" not in model.capabilities
    error = np.linalg.norm(ours.astype(np.float64) - expected, axis=-1)
    assert (error <= 1e-4 * np.linalg.norm(expected, axis=-1)).all()


def test_heads_that_are_not_supported(tmp_path, caplog):
    config = transformers.OPTConfig(
        vocab_size=61, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=20, word_embed_proj_dim=8,
    )  # fmt: skip
    transformers.OPTForSequenceClassification(config).save_pretrained(tmp_path / "opt")
    with pytest.raises(ModelError, match="may name no head if embeddings have another width"):
        gptrs.load_model(tmp_path / "opt", backend="ref")
    small = {**SIZES, "num_key_value_heads": 3}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))
    theirs.save_pretrained(tmp_path / "llama")
    path = tmp_path / "llama" / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "architectures": ["LlamaForReward"]}))
    with caplog.at_level(logging.INFO, "gptrs"):
        model = gptrs.load_model(tmp_path / "llama", backend="ref")
    assert "causal_lm" in model.capabilities
    assert "head of LlamaForReward is not known: the language model is loaded" in caplog.text


def test_a_head_that_answers_questions_is_refused_by_name(tmp_path):
    small = {**SIZES, "num_key_value_heads": 3}
    theirs = transformers.LlamaForQuestionAnswering(transformers.LlamaConfig(**small))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="the head of LlamaForQuestionAnswering is not supported"):
        gptrs.load_model(tmp_path, backend="ref")
