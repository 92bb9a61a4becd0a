"""Files of sentence-transformers that are hostile, damaged or not supported are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.errors import CheckpointError, ModelError
from gptrs_runtime.embedding.embed import recipe_of
from runtime.tiny_bert import (
    TRANSFORMER,
    WIDTH,
    module,
    save_dense,
    save_sentence_bert,
    write_json,
)

MEAN = {"pooling_mode_mean_tokens": True}


@pytest.fixture
def folder(tmp_path) -> Path:
    return save_sentence_bert(tmp_path / "m", MEAN)


def refusal(folder: Path) -> str:
    """What is said of a folder whose files are wrong."""
    with pytest.raises((ModelError, CheckpointError)) as caught:
        gptrs.embed(gptrs.load_model(folder, backend="ref"), ["a"])
    return str(caught.value)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "must be a list, found `{}`"),
        ([], "must begin with `Transformer` and `Pooling`, found nothing"),
        ([TRANSFORMER], "must begin with `Transformer` and `Pooling`, found `Transformer`"),
        ([3], "an entry of `modules.json` must be an object, found `3`"),
        ([{"type": 3, "path": ""}], "`type` must be a string, found `3`"),
        ([{**TRANSFORMER, "path": None}], "`path` must be a string, found `None`"),
        ([{**TRANSFORMER, "type": "evil.Transformer"}], "of other code, `evil.Transformer`, which"),
        ([TRANSFORMER, module("WeightedLayerPooling", "1")], "found `Transformer`, `WeightedLayer"),
        ([{**TRANSFORMER, "path": "0_T"}, module("Pooling", "1_Pooling")], "transformer in `0_T`"),
        ([TRANSFORMER, module("Pooling", "")], "must name a folder of `Pooling` in `path`"),
        ([TRANSFORMER, module("Pooling", "gone")], "needs `gone/config.json`, which is not there"),
        ([TRANSFORMER, module("Pooling", "../m")], "`../m` is not a plain file name"),
        ([TRANSFORMER, module("Pooling", "..")], "`..` is not a plain file name"),
        ([TRANSFORMER, module("Pooling", "/etc")], "`/etc` is not a plain file name"),
        ([TRANSFORMER, module("Pooling", "1_Pooling/x")], "`1_Pooling/x` is not a plain file name"),
        ([TRANSFORMER, module("Pooling", "a\0b")], "is not a plain file name"),
        (
            [TRANSFORMER, module("Pooling", "1_Pooling"), module("LSTM", "2_LSTM")],
            "the module `LSTM` after pooling, which is not supported; supported are `Dense`",
        ),
        (
            [TRANSFORMER, module("Pooling", "1_Pooling"), module("Normalize", "../n")],
            "`../n` is not a plain file name",
        ),
        ([TRANSFORMER] * 17, "17 modules, more than 16"),
    ],
)
def test_modules(folder, modules, message):
    write_json(folder / "modules.json", modules)
    assert message in refusal(folder)


@pytest.mark.parametrize("text", ["[", "[1e999]", '[{"a": 1, "a": 2}]', "[" * 99 + "]" * 99])
def test_a_list_that_is_no_strict_json(folder, text):
    (folder / "modules.json").write_text(text)
    assert "modules.json` is not usable JSON: " in refusal(folder)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "best"}, "must be of `cls`, `max`, `mean`"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "must be of `cls`"),
        ("1_Pooling/config.json", {"pooling_mode": [["cls"]]}, "must be of `cls`"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": "yes"},
            "`pooling_mode_cls_token` in `1_Pooling/config.json` must be true or false, found `'y",
        ),
        ("1_Pooling/config.json", {"include_prompt": 1}, "`include_prompt`"),
        ("sentence_bert_config.json", {"max_seq_length": "9"}, "`max_seq_length` in `sentence_ber"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "must be a number >= 1, found `0`"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "`do_lower_case`"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "'feature-extraction' on"),
        ("tokenizer_config.json", {"model_max_length": True}, "`model_max_length`"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "must be a table of strings"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "must be a table of strings"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "a"},
            "`default_prompt_name` in `config_sentence_transformers.json` must be one of none",
        ),
        ("config_sentence_transformers.json", {"prompts": {"a": "b" * 10_001}}, "at most 10000 ch"),
        ("config_sentence_transformers.json", {"default_prompt_name": 1}, "must be a string"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "integer >= 1"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "`model_type` in"),
    ],
)
def test_settings(folder, name, settings, message):
    write_json(folder / name, settings)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "os.system"}, "must be of `torch.nn`: `Tanh`"),
        ({"activation_function": "torch.nn.modules.linear.Linear"}, "must be of `torch.nn`"),
        ({"activation_function": 3}, "`activation_function` in `2_Dense/config.json` must be a st"),
        ({"module_input_name": "token_embeddings"}, "'sentence_embedding' only"),
        ({"use_residual": True}, "`use_residual` in `2_Dense/config.json` does not fit"),
        ({"out_features": 4}, "`linear.weight [3, 16]`, found `4`"),
        ({"in_features": 10**12}, "does not fit the weights of"),
        ({"out_features": None}, "does not fit the weights of"),
    ],
)
def test_dense_settings(folder, settings, message):
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]
    write_json(folder / "modules.json", entries)
    save_dense(folder / "2_Dense", 3, **settings)
    assert message in refusal(folder)


def test_dense_weights(folder):
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]
    write_json(folder / "modules.json", entries)
    save_dense(folder / "2_Dense", 3)
    weights = folder / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": np.zeros((3, WIDTH), np.float32)}, weights)
    assert "`bias` in `2_Dense/config.json` does not fit" in refusal(folder)
    weights.write_bytes(b"\x08" + b"\0" * 7 + b"damaged!")
    assert "2_Dense/model.safetensors" in refusal(folder)
    weights.unlink()
    assert "the module `2_Dense` has no `model.safetensors`" in refusal(folder)


def test_links_that_lead_out_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    write_json(outside / "config.json", {"pooling_mode": "cls"})
    pooling = folder / "1_Pooling"
    (pooling / "config.json").unlink()
    (pooling / "config.json").symlink_to(outside / "config.json")
    assert "is a link to" in refusal(folder)
    (pooling / "config.json").unlink()
    pooling.rmdir()
    pooling.symlink_to(outside)
    assert "files outside the model folder are never opened" in refusal(folder)


def test_a_pipe_is_not_waited_for(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    os.mkfifo(folder / "1_Pooling" / "config.json")
    assert "a regular file is needed" in refusal(folder)


def test_blobs_of_a_hub_cache_are_inside(tmp_path):
    entry = tmp_path / "models--a--b"
    snapshot = save_sentence_bert(entry / "snapshots" / "abc", MEAN)
    (entry / "blobs").mkdir()
    (entry / "blobs" / "1").write_text(json.dumps({"pooling_mode": "cls"}))
    config = snapshot / "1_Pooling" / "config.json"
    config.unlink()
    config.symlink_to("../../../blobs/1")
    recipe = recipe_of(gptrs.load_model(snapshot, backend="ref"))
    assert recipe.pooling.modes == ("cls",)
