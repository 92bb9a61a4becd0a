"""`--adapter` of the commands that run a model."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs_runtime.load import load_model
from runtime.tiny_bert import save_tiny_bert


@pytest.fixture
def adapter(tmp_path):
    """An adapter of the demo model whose factors are so large that it says something else."""
    weights = load_model("demo", "ref").weights
    stored = next(each for each in weights.names() if each.endswith("h.0.attn.c_proj.weight"))
    width = weights.type_of(stored).shape[0]
    return save_adapter(tmp_path / "adapter", "transformer.h.0.attn.c_proj", width, width)


def save_adapter(folder, layer, inputs, outputs):
    """Write the factors of one layer, as PEFT does."""
    rng = np.random.default_rng(1)
    factors = {
        f"base_model.model.{layer}.lora_{part}.weight": rng.normal(size=shape).astype(np.float32)
        for part, shape in {"A": (2, inputs), "B": (outputs, 2)}.items()
    }
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    settings = '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}'
    (folder / "adapter_config.json").write_text(settings, encoding="utf-8")
    return folder


def test_what_is_no_adapter_is_refused(gptrs, tmp_path):
    refused = gptrs("generate", "x", "--backend", "ref", "--adapter", tmp_path)
    assert refused.code == 3
    assert "it has no adapter_config.json" in refused.err


def test_an_adapter_changes_the_text_and_is_told(gptrs, adapter):
    asked = ("generate", "def f", "--backend", "ref", "--greedy", "--max-tokens", 6, "--json")
    plain, changed = gptrs(*asked).json, gptrs(*asked, "--adapter", adapter).json
    assert changed["token_ids"] != plain["token_ids"]
    assert (changed["adapter"], "adapter" in plain) == (str(adapter), False)


def test_an_adapter_changes_how_well_a_text_is_predicted(gptrs, adapter):
    asked = ("perplexity", "def add(a, b): return a + b", "--backend", "ref", "--json")
    plain, changed = gptrs(*asked).json, gptrs(*asked, "--adapter", adapter).json
    assert changed["nll"] != plain["nll"]
    assert (changed["adapter"], "adapter" in plain) == (str(adapter), False)


def test_an_adapter_is_measured(gptrs, adapter):
    asked = ("bench", "forward", "--tokens", 8, "--rounds", 1, "--backend", "ref", "--json")
    assert gptrs(*asked, "--adapter", adapter).json["adapter"] == str(adapter)


def test_an_adapter_changes_vectors(gptrs, tmp_path):
    model = save_tiny_bert(tmp_path / "bert")
    width = load_model(model, "ref").config["hidden_size"]
    layer = "encoder.layer.0.attention.self.query"
    adapter = save_adapter(tmp_path / "adapter", layer, width, width)
    asked = ("embed", "--model", model, "--text", "the cat", "--backend", "ref", "--json")
    plain, changed = gptrs(*asked).json, gptrs(*asked, "--adapter", adapter).json
    assert np.abs(np.subtract(changed["embeddings"], plain["embeddings"])).max() > 1e-3
    assert (changed["adapter"], "adapter" in plain) == (str(adapter), False)


def test_an_adapter_brings_the_classes_of_an_encoder(gptrs, tmp_path):
    model = save_tiny_bert(tmp_path / "bert")
    width = load_model(model, "ref").config["hidden_size"]
    layer = "bert.encoder.layer.0.attention.self.query"
    adapter = save_adapter(tmp_path / "adapter", layer, width, width)
    head = {
        "base_model.model.classifier.weight": np.eye(3, width, dtype=np.float32),
        "base_model.model.classifier.bias": np.zeros(3, np.float32),
        "base_model.model.bert.pooler.dense.weight": np.eye(width, dtype=np.float32),
        "base_model.model.bert.pooler.dense.bias": np.zeros(width, np.float32),
    }
    file = adapter / "adapter_model.safetensors"
    save_file({**load_file(file), **head}, file)
    task = '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "SEQ_CLS"}'
    (adapter / "adapter_config.json").write_text(task, encoding="utf-8")
    asked = ("classify", "--model", model, "--text", "the cat", "--backend", "ref", "--json")
    assert gptrs(*asked).code == 3
    found = gptrs(*asked, "--adapter", adapter).json
    assert {each["label"] for each in found["classes"][0]} == {"LABEL_0", "LABEL_1", "LABEL_2"}
    assert found["adapter"] == str(adapter)
