"""Adapters of each form that PEFT writes compute what PEFT computes with them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.errors import CheckpointError, ModelError
from gptrs.ir import dtypes
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.answers import families
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.test_adapters import LLAMA, save_adapter

peft = pytest.importorskip("peft", reason="peft is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:peft"),
]
TOKENS = np.array([[5, 9, 2, 41, 7, 7, 30, 12]])


def llama(head="ForCausalLM", **settings):
    config = transformers.LlamaConfig(
        vocab_size=97, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.3, pad_token_id=0,
        **{"hidden_size": 40, "intermediate_size": 56, **settings},
    )  # fmt: skip
    return getattr(transformers, f"Llama{head}")(config).eval()


def gpt2(head="LMHeadModel", **settings):
    config = transformers.GPT2Config(
        vocab_size=97, n_embd=40, n_layer=2, n_head=4, n_positions=32, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0, **settings,
    )  # fmt: skip
    return getattr(transformers, f"GPT2{head}")(config).eval()


def qwen3_moe(**settings):
    config = transformers.Qwen3MoeConfig(
        vocab_size=97, hidden_size=40, intermediate_size=56, num_hidden_layers=2, head_dim=10,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, **settings,
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config).eval()


def bert(head="ForSequenceClassification", **settings):
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=40, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32, initializer_range=0.3, **settings,
    )  # fmt: skip
    return getattr(transformers, f"Bert{head}")(config).eval()


def saved(theirs, folder, **settings):
    """Save the model and an adapter of random values; return what PEFT computes with it."""
    theirs.save_pretrained(folder / "base")
    lora = peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, **settings)
    model = peft.get_peft_model(theirs, lora).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad and "lora_A" not in name and "lora_B" not in name:
                value.add_(torch.rand_like(value) * 0.4)
        model.save_pretrained(folder / "adapter")
        return model(torch.tensor(TOKENS)).logits.numpy()


def computed(folder, **how):
    """What a model with the adapter computes, merged and beside the model, which are close."""
    adapter = folder / "adapter"
    base = load_model(folder / "base", "ref", **how)
    made = [load_model(folder / "base", "ref", adapter=adapter, **how), base.with_adapter(adapter)]
    merged, beside = (model.forward(TOKENS) for model in made)
    np.testing.assert_allclose(merged, beside, rtol=1e-5, atol=2e-5)
    return merged


def changed(folder):
    """What `computed` returns, which the base does not compute, before and after."""
    base = load_model(folder / "base", "ref")
    before = base.forward(TOKENS)
    beside = base.with_adapter(folder / "adapter").forward(TOKENS)
    np.testing.assert_array_equal(base.forward(TOKENS), before)
    assert np.abs(beside - before).max() > 1e-2
    return computed(folder)


TABLE = ["q_proj", "embed_tokens"]
FORMS = {
    "head": (llama, {}, {"target_modules": ["q_proj", "lm_head"]}),
    "tied head": (llama, {"tie_word_embeddings": True}, {"target_modules": ["lm_head"]}),
    "table": (llama, {}, {"target_modules": TABLE}),
    "tied table": (llama, {"tie_word_embeddings": True}, {"target_modules": TABLE}),
    "copied table": (
        llama, {"tie_word_embeddings": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "copied table and head": (
        llama, {}, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "copied norm": (llama, {}, {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "copied tables and head of masked words": (
        lambda **settings: bert("ForMaskedLM", **settings), {},
        {"target_modules": ["query"], "modules_to_save": ["bert.embeddings"]},
    ),
    "dora": (llama, {}, {"target_modules": "all-linear", "use_dora": True}),
    "dora of a table": (llama, {}, {"target_modules": TABLE, "use_dora": True}),
    "dora of gpt2": (
        gpt2, {}, {"target_modules": ["c_attn", "wte"], "use_dora": True, "fan_in_fan_out": True},
    ),
    "dora of the head": (llama, {}, {"target_modules": ["lm_head"], "use_dora": True}),
    "bias": (
        llama, {"attention_bias": True}, {"target_modules": ["q_proj"], "bias": "lora_only"},
    ),
    "all biases": (gpt2, {}, {"target_modules": ["c_attn"], "bias": "all", "use_rslora": True}),
    "positions": (gpt2, {}, {"target_modules": ["wpe", "wte"]}),
    "dora with biases": (gpt2, {}, {"target_modules": ["c_fc"], "bias": "all", "use_dora": True}),
    "routers": (
        qwen3_moe, {}, {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]},
    ),
    "patterns": (
        llama, {},
        {"target_modules": "all-linear", "rank_pattern": {"layers.1.mlp.up_proj": 8},
         "alpha_pattern": {"up_proj": 3, "^model.layers.0.self_attn.q_proj": 2}},
    ),
    "expressions": (
        llama, {},
        {"target_modules": "all-linear",
         "alpha_pattern": {r".*\.layers\.1\..*(q_proj|k_proj)$": 3,
                           r"layers\.\d+\.mlp.(?:up|ga[a-t]e)_proj": 2}},
    ),
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_computes_what_peft_computes(form, tmp_path):
    make, settings, lora = FORMS[form]
    torch.manual_seed(3)
    expected = saved(make(**settings), tmp_path, **lora)
    np.testing.assert_allclose(changed(tmp_path), expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS"])
@pytest.mark.parametrize("make", [llama, bert])
def test_the_adapter_of_a_classifier_brings_the_head(task, make, tmp_path):
    """PEFT adds `modules_to_save` by itself; the base has no such head, and names no classes."""
    torch.manual_seed(3)
    head = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}[task]
    targets = ["q_proj"] if make is llama else ["query", "word_embeddings"]
    expected = saved(make(head, num_labels=3), tmp_path, task_type=task, target_modules=targets)
    weights = load_file(tmp_path / "base/model.safetensors")
    body = {name: each for name, each in weights.items() if name.split(".")[0] in ("model", "bert")}
    save_file(body, tmp_path / "base/model.safetensors")
    config = json.loads((tmp_path / "base/config.json").read_bytes())
    config["architectures"] = ["BertModel" if make is bert else "LlamaModel"]
    config.pop("id2label")
    (tmp_path / "base/config.json").write_text(json.dumps(config), encoding="utf-8")
    found = computed(tmp_path)
    assert found.shape[-1] == 3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5)


def test_dora_beside_quantized_weights_is_that_of_their_values(tmp_path):
    torch.manual_seed(3)
    wide = {"hidden_size": 64, "intermediate_size": 96}  # rows of whole groups
    targets = ["q_proj", "embed_tokens"]
    expected = saved(llama(**wide), tmp_path, target_modules=targets, use_dora=True)
    found = computed(tmp_path, weights="q8")
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_compiled_kernels_compute_the_same(tmp_path):
    torch.manual_seed(3)
    expected = saved(llama(), tmp_path, target_modules=["q_proj", "embed_tokens"], use_dora=True)
    base = load_model(tmp_path / "base", "numba")
    found = base.with_adapter(tmp_path / "adapter").forward(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_layers_that_nothing_reads_are_skipped_with_a_note(tmp_path, caplog):
    torch.manual_seed(3)
    expected = saved(bert(), tmp_path, target_modules=["query", "pooler.dense"])
    config = json.loads((tmp_path / "base/config.json").read_bytes())
    config["architectures"] = ["BertModel"]
    (tmp_path / "base/config.json").write_text(json.dumps(config), encoding="utf-8")
    assert expected.shape == (1, 2)
    load_model(tmp_path / "base", "ref", adapter=tmp_path / "adapter")
    assert "changes `bert.pooler.dense`, which `base` does not use: skipped" in caplog.text


def test_adapters_that_do_more_than_sums_take_steps_of_their_own(tmp_path, caplog):
    torch.manual_seed(3)
    for name, dora in {"one": True, "two": True, "plain": False, "other": False}.items():
        folder = tmp_path / name
        saved(llama(), folder, target_modules=["q_proj"], use_dora=dora)
    base = load_model(tmp_path / "one/base", "ref")
    names = ("one", "two", "plain", "other")
    models = {name: base.with_adapter(tmp_path / name / "adapter", name) for name in names}
    found = {tuple(family.names) for family in families({"base": base, **models})}
    assert found == {("base",), ("one",), ("two",), ("plain", "other")}
    assert "separate steps" not in caplog.text


def test_whole_tensors_of_other_shapes_are_refused(tmp_path):
    torch.manual_seed(3)
    lora = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    saved(llama(), tmp_path, **lora)
    base = load_model(tmp_path / "base", "ref")
    file = tmp_path / "adapter/adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.lm_head.weight"
    save_file({**tensors, name: tensors[name][:90].copy()}, file)
    with pytest.raises(CheckpointError, match=r"in the adapter .* is `f32\[90, 40\]`, the model"):
        base.with_adapter(tmp_path / "adapter")
    save_file({**tensors, "base_model.model.other.weight": tensors[name]}, file)
    with pytest.raises(ModelError, match=r"changes `other\.weight`, which are not linear layers"):
        base.with_adapter(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("base", "is_told"),
    [
        ("org/other", True), ("org/base", False), ("/models/BASE/", False), (None, False),
        ("/cache/models--org--base/snapshots/0a1b", False),
        ("/cache/models--org--more/snapshots/0a1b", True),
    ],
)  # fmt: skip
def test_an_adapter_of_a_model_of_another_name_is_told(base, is_told, tmp_path, caplog):
    model = save_tiny_lm(tmp_path / "base", "llama", dtypes.f32)
    settings = {} if base is None else {"base_model_name_or_path": base}
    adapter = save_adapter(tmp_path / "adapter", LLAMA, **settings)
    load_model(model, "ref", adapter=adapter)
    told = f"says that it was made for `{base}`: is `base` the same model?" in caplog.text
    assert told == is_told
