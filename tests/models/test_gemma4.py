"""Gemma 4: what its blocks share, its text among other parts, and settings that do not fit."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_conformance.plugin_kits import models
from gptrs_conformance.plugin_kits.model_subject import model_in
from gptrs_conformance.plugin_kits.subject import run_kit
from gptrs_models.gemma4 import Gemma4Config
from models.llama_support import assert_close, edit_config, made_llama, some_tokens
from models.models_support import whole_logits
from models.more_decoders import GEMMA4

TYPES = ["sliding_attention", "full_attention"] * 2
SHARED = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 6}


def save(folder, **settings):
    """Save a model whose norms, scales and factors of layers are not 1; return that of torch."""
    torch = pytest.importorskip("torch", reason="parity needs torch")
    theirs = made_llama(folder, "Gemma4Text", **{**GEMMA4, "vocab_size_per_layer_input": 97,
                                                 **settings})  # fmt: skip
    torch.manual_seed(3)
    with torch.no_grad():
        for name, values in theirs.state_dict().items():
            if "norm" in name or "scal" in name:
                values.add_(0.3 * torch.randn_like(values))
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.long
@pytest.mark.parametrize("joined", [False, True])
def test_every_weight_counts(tmp_path, joined):
    experts = {"num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12}
    own = {**experts, "enable_moe_block": True, "attention_k_eq_v": True} if joined else SHARED
    theirs, tokens = save(tmp_path / "m", **own), some_tokens(2, 30)
    model = gptrs.load_model(tmp_path / "m", backend="ref")
    assert_close(model.forward(tokens), whole_logits(theirs, tokens))


@pytest.mark.long
def test_it_is_the_same_in_steps_in_company_and_from_pages(tmp_path, backend):
    save(tmp_path / "m", **SHARED, use_double_wide_mlp=True)
    subject = model_in(tmp_path / "m")
    report = run_kit(subject, [each for each in models.KIT if "settings" not in each.__name__],
                     backend)  # fmt: skip
    assert not report.failures, list(map(str, report.failures))
    assert "pass" in report.checks.values()


def test_layers_without_keys_of_their_own_have_no_cache(tmp_path):
    save(tmp_path / "m", **SHARED)
    model = gptrs.load_model(tmp_path / "m", backend="ref").causal_lm()
    assert [(spec.head_dim, spec.window) for spec in model.cache_specs()] == [(8, 9), (16, None)]


def test_only_the_text_is_read_of_a_model_that_sees(tmp_path, caplog):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    torch = pytest.importorskip("torch", reason="parity needs torch")
    texts = {**GEMMA4, **SHARED, "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size_per_layer_input": 97,
             "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
    del texts["saved_as"]
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8,
             "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    config = transformers.Gemma4Config(text_config=texts, vision_config=tower, audio_config=None)
    torch.manual_seed(2)
    theirs = transformers.Gemma4ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path / "m")
    tokens = some_tokens(1, 20)
    with caplog.at_level(logging.INFO, logger="gptrs"):
        found = gptrs.load_model(tmp_path / "m", backend="ref").forward(tokens)
    assert "only the language model of the `gemma4` model is loaded" in caplog.text
    with torch.no_grad():
        wanted = theirs(input_ids=torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_sizes_of_files_on_the_hub_are_those_of_saved_ones(tmp_path):
    save(tmp_path / "m", attention_k_eq_v=True, num_global_key_value_heads=1)
    tokens = some_tokens(1, 9)
    expected = gptrs.load_model(tmp_path / "m", backend="ref").forward(tokens)
    edit_config(tmp_path / "m", per_layer_config=None, global_head_dim=16,
                num_global_key_value_heads=1)  # fmt: skip
    found = gptrs.load_model(tmp_path / "m", backend="ref").forward(tokens)
    np.testing.assert_array_equal(found, expected)


def test_numbers_of_layers_that_transformers_pads_with_zeros_are_read():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    saved = json.loads(transformers.Gemma4TextConfig().to_json_string())
    assert "05" in saved["per_layer_config"]
    assert Gemma4Config.from_settings(saved) == Gemma4Config.from_settings({})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_bidirectional_attention": "all"}, "`use_bidirectional_attention`"),
        ({"layer_types": TYPES[:2]}, "must have one word for each of 4 layers"),
        ({"layer_types": ["full_attention", "conv"] * 2}, "`layer_types`"),
        ({"num_kv_shared_layers": 3}, "must leave a layer of each type before them"),
        ({"per_layer_config": {"1": {"head_dim": 8}}}, "the same for all layers without"),
        ({"per_layer_config": {"1": {"sliding_window": 8}, "3": {"sliding_window": 8}}}, "alone"),
        ({"per_layer_config": 3}, "must be an object"),
        ({"num_key_value_heads": 3}, "a number that 3 key and value heads divide"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "at most 2"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, said):
    known = {"num_hidden_layers": 4, "layer_types": TYPES, "moe_intermediate_size": 8}
    with pytest.raises(ModelError, match=said):
        Gemma4Config.from_settings({**known, **settings})
