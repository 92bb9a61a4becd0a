"""What of a model's files nothing reads is told when it is loaded, and by `gptrs inspect`."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs_runtime import unread
from gptrs_runtime.generation.model_settings import ignored_settings
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.unread import unread_in
from runtime.tiny_gpt2 import save_tiny_gpt2


def folder_with(tmp_path, tensors=(), generation=None, **settings):
    """A GPT-2 with more tensors, and settings."""
    folder = save_tiny_gpt2(tmp_path / "m", generation_config=generation or {})
    stored = load_file(folder / "model.safetensors")
    more = {name: np.ones(3, np.float32) for name in tensors}
    save_file({**stored, **more}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def told(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_model_that_is_right_gives_no_note(tmp_path, caplog):
    gptrs.load_model(folder_with(tmp_path), "ref")
    assert told(caplog) == []


def test_an_adapter_beside_the_weights_is_told(tmp_path, caplog):
    folder = folder_with(tmp_path)
    (folder / "adapter_config.json").write_text("{}")
    gptrs.load_model(folder, "ref")
    assert told(caplog) == [
        "`m` has an adapter beside its weights (`adapter_config.json`), which is not applied:"
        " `adapter`, `--adapter` takes its folder"
    ]


def test_weights_are_told_in_one_line(tmp_path, caplog):
    names = [f"transformer.h.{layer}.attn.extra.bias" for layer in range(9)]
    gptrs.load_model(folder_with(tmp_path, names), "ref")
    shown = ", ".join(f"`{name}`" for name in names[:6])
    assert told(caplog) == [f"no layer of `m` reads 9 of its weights: {shown} and 3 more"]


@pytest.mark.parametrize(
    "name",
    [
        "transformer.h.0.attn.bias",
        "transformer.h.0.attn.masked_bias",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "bn.num_batches_tracked",
        "embeddings.position_ids",
        "model.encoder.embed_tokens.weight",
        "pooler.dense.weight",
        "bert.pooler.dense.bias",
    ],
)
def test_harmless_weights_are_not_told(tmp_path, caplog, name):
    gptrs.load_model(folder_with(tmp_path, [name]), "ref")
    assert told(caplog) == []


@pytest.mark.parametrize(
    "name", ["h.0.attn.q_bias", "attn_bias", "lm_head.extra", "my_pooler.weight", "inv_freqs"]
)
def test_names_that_only_look_harmless_are_told(tmp_path, name):
    found = unread_in(find_model(folder_with(tmp_path, [name])))
    assert found is not None
    assert (list(found.weights), list(found.ahead)) == ([name], [])


def test_layers_ahead_are_told_as_such(tmp_path, caplog):
    names = [f"model.layers.{layer}.mlp.weight" for layer in (1, 2, 3, 4)]
    folder = folder_with(
        tmp_path, [*names, "mtp.norm.weight"], num_hidden_layers=2, num_nextn_predict_layers=2
    )
    found = unread_in(find_model(folder))
    assert found is not None
    assert list(found.ahead) == [names[1], names[2], "mtp.norm.weight"]
    assert list(found.weights) == [names[0], names[3]]
    with caplog.at_level("INFO", "gptrs"):
        gptrs.load_model(folder, "ref")
    expected = "3 tensors of `m` are for guessing further tokens: only --mtp may read them"
    assert told(caplog)[0] == expected


def test_settings_are_told_unless_they_are_off_or_known(tmp_path, caplog):
    known = {"attention_dropout": 0.5, "torch_dtype": "float16", "label2id": {"a": 0}}
    off = {"odd_scale": None, "odd_switch": False, "odd_list": [], "odd_table": {}, "odd_word": ""}
    folder = folder_with(tmp_path, **known, **off, odd_factor=2, other=0)
    gptrs.load_model(folder, "ref")
    assert told(caplog) == ["config.json of `m`: `odd_factor`, `other` are not known and ignored"]


def test_one_setting(tmp_path, caplog):
    gptrs.load_model(folder_with(tmp_path, odd={"a": 1}), "ref")
    assert told(caplog) == ["config.json of `m`: `odd` is not known and ignored"]


def test_settings_of_generation(tmp_path, caplog):
    settings = {"token_healing": True, "made_up": 3, "top_k": 4, "use_cache": True, "odd": False}
    folder = folder_with(tmp_path, generation=settings)
    gptrs.generate(gptrs.load_model(folder, "ref"), [1], max_tokens=1)
    assert told(caplog) == [
        "generation_config.json of `m`: `token_healing`, `made_up` are not supported and ignored"
    ]


def test_all_settings_of_transformers_are_known():
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    assert ignored_settings(transformers.GenerationConfig().to_dict()) == []
    names = transformers.GenerationConfig().to_dict()
    assert set(ignored_settings(dict.fromkeys(names, 7))) == {
        *("constraints", "dola_layers", "force_words_ids", "guidance_scale", "max_time"),
        *("num_beam_groups", "num_beams", "num_return_sequences", "penalty_alpha"),
        *("token_healing", "top_h", "watermarking_config"),
    }


def test_a_kind_without_a_plugin_leaves_nothing_to_say(tmp_path):
    assert unread_in(find_model(folder_with(tmp_path, model_type="nobody"))) is None


def test_the_settings_of_most_files_are_among_the_harmless_ones() -> None:
    assert [each for each in unread._MOST_HAVE if not re.fullmatch(unread._HARMLESS, each)] == []
