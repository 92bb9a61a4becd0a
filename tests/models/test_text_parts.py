"""The language model of kinds that also see or hear agrees with transformers on texts."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.errors import ModelError
from gptrs_models.text_parts import TEXT_KINDS, read_text
from models.llama_support import assert_close, edit_config
from models.models_support import assert_greedy, whole_logits

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

GREEDY = gptrs.Sampling(temperature=0)
TEXT: dict[str, object] = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160},
    **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
}
TOWER: dict[str, object] = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16},
    **{"intermediate_size": 16, "patch_size": 8},
}
QWEN: dict[str, object] = {
    **{"depth": 1, "hidden_size": 16, "num_heads": 2, "embed_dim": 16, "out_hidden_size": 32},
    **{"intermediate_size": 16, "patch_size": 4, "num_position_embeddings": 16},
    **{"fullatt_block_indexes": [0], "deepstack_visual_indexes": []},
}
AUDIO = {
    **{"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16},
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    "num_attention_heads": 2,
}
RESAMPLER = {
    **{"resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2},
    **{"resampler_head_dim": 8, "num_key_value_heads": 2, "hidden_size": 32},
}
DELTA: dict[str, object] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6},
    **{"linear_value_head_dim": 10, "linear_conv_kernel_dim": 3},
}
AXES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}


def text(kind: str | None = None, **settings: object) -> dict[str, object]:
    """Return a `text_config`."""
    return {**TEXT, **({} if kind is None else {"model_type": kind}), **settings}


def tower(kind: str, **settings: object) -> dict[str, object]:
    """Return a `vision_config`."""
    return {**TOWER, "model_type": kind, **settings}


CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "gemma3": (
        "Gemma3",
        text(head_dim=8, sliding_window=12, final_logit_softcapping=3.0),
        {"vision_config": TOWER, "mm_tokens_per_image": 1},
    ),
    "mistral3": (
        "Mistral3",
        text("ministral3", head_dim=16),
        {"vision_config": tower("pixtral")},
    ),
    "llava": (
        "Llava",
        text("mistral", sliding_window=9),
        {"vision_config": tower("clip_vision_model", projection_dim=16)},
    ),
    "llava_next": (
        "LlavaNext",
        text("llama", tie_word_embeddings=True),
        {
            "vision_config": tower("clip_vision_model", projection_dim=16),
            "tie_word_embeddings": True,
        },
    ),
    "llava_onevision": (
        "LlavaOnevision",
        text("qwen2"),
        {"vision_config": tower("siglip_vision_model")},
    ),
    "internvl": (
        "InternVL",
        text("qwen2"),
        {"vision_config": tower("internvl_vision", image_size=[16, 16], patch_size=[8, 8])},
    ),
    "aya_vision": (
        "AyaVision",
        text("cohere2", head_dim=8, sliding_window=12),
        {"vision_config": tower("siglip_vision_model")},
    ),
    "cohere2_vision": (
        "Cohere2Vision",
        text("cohere2", head_dim=8, sliding_window=12),
        {"vision_config": tower("siglip_vision_model")},
    ),
    "lfm2_vl": (
        "Lfm2Vl",
        text("lfm2", full_attn_idxs=[1, 3], block_auto_adjust_ff_dim=False),
        {"vision_config": tower("siglip2_vision_model", num_patches=4)},
    ),
    "qwen2_vl": ("Qwen2VL", text(rope_parameters=AXES), {"vision_config": QWEN}),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        text(rope_parameters=AXES, tie_word_embeddings=True),
        {"vision_config": QWEN, "tie_word_embeddings": True},
    ),
    "qwen3_vl": (
        "Qwen3VL",
        text(head_dim=8, rope_parameters={**AXES, "mrope_interleaved": True}),
        {"vision_config": QWEN},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        text(
            **{"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 20, "norm_topk_prob": True},
            rope_parameters={**AXES, "mrope_interleaved": True},
        ),
        {"vision_config": QWEN},
    ),
    "qwen3_5": (
        "Qwen3_5",
        text(**DELTA, head_dim=8, rope_parameters={**AXES, "partial_rotary_factor": 0.5}),
        {"vision_config": QWEN},
    ),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        text(
            **{**DELTA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 20, "shared_expert_intermediate_size": 12},
        ),
        {"vision_config": QWEN},
    ),
    "qwen2_audio": (
        "Qwen2Audio",
        text("qwen2"),
        {"audio_config": {**AUDIO, "model_type": "qwen2_audio_encoder"}},
    ),
    "voxtral": ("Voxtral", text("llama"), {"audio_config": AUDIO}),
    "idefics2": (
        "Idefics2",
        text("mistral", sliding_window=None),
        {"vision_config": TOWER, "perceiver_config": RESAMPLER},
    ),
    "deepseek_vl": (
        "DeepseekVL",
        text("llama"),
        {"vision_config": tower("siglip_vision_model")},
    ),
}
"""The class of each kind in transformers, the settings of its texts, and those of other parts."""
COMPILED = {"gemma3"}
WRITTEN = {"gemma3", "mistral3", "llava", "qwen2_5_vl", "lfm2_vl"}
"""Kinds whose greedy tokens are compared, too."""


def save(folder: Path, name: str, seed: int = 7) -> Any:
    """Save a model with random weights; return transformers' own."""
    kind, texts, parts = CASES[name]
    tokens = {f"{what}_token_{end}": 96 for what in ("image", "audio") for end in ("id", "index")}
    config = getattr(transformers, f"{kind}Config")(
        text_config=texts, **{**tokens, "video_token_id": 95, **parts}
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif any(word in part for word in ("lm_head", "embed_tokens", "layers")):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return model


def test_every_kind_has_a_case():
    assert set(CASES) == set(TEXT_KINDS)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens(tmp_path, backend_name, name):
    if backend_name != "ref" and name not in COMPILED:
        pytest.skip("the kinds that texts are of are compiled elsewhere")
    theirs = save(tmp_path / "m", name)
    tokens = np.random.default_rng(1).integers(0, 90, (2, 30))
    model = gptrs.load_model(tmp_path / "m", backend=backend_name)
    assert_close(model.forward(tokens), whole_logits(theirs, tokens))
    if name not in WRITTEN:
        return
    prompt = tokens[0, :9].tolist()
    ours = gptrs.generate(model, prompt, max_tokens=48, sampling=GREEDY, ignore_eos=True)
    assert_greedy(partial(whole_logits, theirs), prompt, ours.token_ids, 48)


def test_settings_of_texts_beside_those_of_other_parts(tmp_path, caplog):
    theirs = save(tmp_path / "m", "qwen2_vl")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    texts = {**config.pop("text_config"), "rope_parameters": None}
    scaling = {"type": "mrope", "mrope_section": [1, 1, 2]}
    flat = {**texts, **config, "rope_theta": 1e6, "rope_scaling": scaling}
    path.write_text(json.dumps(flat))
    tokens = np.random.default_rng(2).integers(0, 90, (1, 12))
    with caplog.at_level(logging.INFO, logger="gptrs"):
        model = gptrs.load_model(tmp_path / "m", backend="ref")
    assert "only the language model of the `qwen2_vl` model is loaded" in caplog.text
    with torch.no_grad():
        wanted = theirs(input_ids=torch.from_numpy(tokens)).logits
    assert_close(model.forward(tokens), wanted.numpy())


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_defaults_are_those_of_the_whole_model(tmp_path, name):
    theirs = type(save(tmp_path / "m", name))
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    texts = config["text_config"]
    del texts["rms_norm_eps"], texts["rope_parameters"]["rope_theta"]
    edit_config(tmp_path / "m", text_config=texts)
    theirs = theirs.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    tokens = np.random.default_rng(4).integers(0, 90, (1, 30))
    ours = gptrs.load_model(tmp_path / "m", backend="ref").forward(tokens)
    assert_close(ours, whole_logits(theirs, tokens))


@pytest.mark.whole
@pytest.mark.parametrize("name", TEXT_KINDS)
def test_sizes_that_a_text_config_leaves_out_are_those_of_the_whole_model(name):
    """transformers leaves out what equals the default of the text's class, such as 80 layers."""
    bare = {"model_type": name, "text_config": {}}
    saved = transformers.AutoConfig.for_model(name, text_config={}).to_json_string(use_diff=False)
    whole = {**json.loads(saved), "model_type": name}
    assert read_text(bare, {}) == read_text(whole, {})


def test_experts_with_turned_axes(tmp_path):
    theirs = save(tmp_path / "m", "qwen3_vl_moe")
    path = tmp_path / "m" / "model.safetensors"
    stored = load_file(path)
    for name, weight in stored.items():
        if ".experts." in name:
            stored[name] = np.ascontiguousarray(weight.swapaxes(1, 2))
    save_file(stored, path)
    tokens = np.random.default_rng(3).integers(0, 90, (1, 12))
    with torch.no_grad():
        wanted = theirs(input_ids=torch.from_numpy(tokens)).logits
    assert_close(gptrs.load_model(tmp_path / "m", backend="ref").forward(tokens), wanted.numpy())


def test_texts_of_an_unknown_kind_are_refused(tmp_path):
    save(tmp_path / "m", "llava")
    edit_config(tmp_path / "m", text_config={"model_type": "other"})
    with pytest.raises(ModelError, match=r"`text_config` of a `llava` model has the .* 'other'"):
        gptrs.load_model(tmp_path / "m", backend="ref")


def test_a_head_for_classes_is_refused(tmp_path):
    save(tmp_path / "m", "gemma3")
    edit_config(tmp_path / "m", architectures=["Gemma3ForSequenceClassification"])
    with pytest.raises(ModelError, match="with a head for classes is not supported"):
        gptrs.load_model(tmp_path / "m", backend="ref")
