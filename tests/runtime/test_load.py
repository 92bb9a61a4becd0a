"""Loading: any kind by its config, on any backend by name, and what a loaded model offers."""

from __future__ import annotations

import inspect
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.errors import CheckpointError, ModelError, PluginError, UsageError
from gptrs.ir import dtypes
from gptrs.plugins.manager import manager
from gptrs_runtime import loaded_model
from gptrs_runtime.load import load_model
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.tiny_gpt2 import save_tiny_gpt2


def test_a_loaded_model_says_what_it_is(model, directory):
    assert (model.name, model.kind) == ("tiny", "gpt2")
    assert model.capabilities == {"causal_lm", "hidden_states"}
    assert model.config["n_embd"] == 32
    assert model.eos_tokens == {0}
    assert model.bos_token == 0
    assert model.load_seconds > 0


def test_functions_that_take_a_model_are_named_where_they_are_looked_for(model):
    functions = [getattr(gptrs, name) for name in dir(gptrs)]
    takers = {
        each.__name__
        for each in filter(inspect.isfunction, functions)
        if next(iter(inspect.signature(each).parameters), "") == "model"
    }
    assert takers == loaded_model._VERBS
    with pytest.raises(AttributeError, match=r"call `gptrs\.generate\(model, \.\.\.\)`"):
        model.generate("x")
    with pytest.raises(AttributeError, match=r"has no attribute `generat`$"):
        model.generat("x")
    assert not hasattr(model, "generate")


def test_the_backend_named_runs_it(backend, directory):
    model = load_model(directory, backend=backend.name)
    assert model.backend.name == backend.name
    logits = model.forward(np.array([[1, 2, 3]]))
    assert (logits.shape, logits.dtype) == ((1, 3, 300), np.float32)


def test_without_a_path_the_bundled_model_is_loaded():
    model = load_model(backend="ref")
    assert model.name == manager().demo_model_path().name
    assert model.has_tokenizer


def test_a_bundled_model_has_a_name_where_nothing_lies_under_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_model("demo", backend="ref").files.path == manager().demo_model_path()
    save_tiny_gpt2(tmp_path / "demo")
    assert load_model("demo", backend="ref").config["n_embd"] == 32
    with pytest.raises(ModelError):
        load_model("./other/demo", backend="ref")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_forward_takes_any_integer_type(model, dtype):
    tokens = np.array([[4, 5, 6], [7, 8, 9]])
    np.testing.assert_array_equal(model.forward(tokens.astype(dtype)), model.forward(tokens))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((1, 3), np.float32), r"got float32\[1, 3\]"),
        (np.zeros(3, np.int64), r"got int64\[3\]"),
        (np.zeros((1, 0), np.int64), r"got int64\[1, 0\]"),
        (np.zeros((1, 65), np.int64), "65 tokens exceed the context of 64 tokens"),
        (np.array([[1, 300]]), "token 300 is not in the vocabulary"),
        (np.array([[1, -1]]), "token -1 is not in the vocabulary"),
    ],
)
def test_forward_refuses_other_inputs(model, inputs, message):
    with pytest.raises(UsageError, match=message):
        model.forward(inputs)


def edited(directory, folder, **settings):
    """A copy of `directory` whose config.json has `settings`."""
    shutil.copytree(directory, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **settings}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model_type": "hopfield"}, ModelError, "there is no model kind `hopfield`"),
        ({"model_type": None}, ModelError, "must name the kind of model in `model_type`"),
        ({"n_head": 5}, ModelError, "not a multiple of `n_head`"),
        ({"n_embd": 64}, CheckpointError, "the model needs `f32"),
        ({"n_layer": 3}, CheckpointError, r"no tensor `transformer\.h\.2"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(directory, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        load_model(edited(directory, tmp_path / "edited", **settings), backend="ref")


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("llama tied", "embed_tokens.weight"),
        ("opt", "embed_tokens.weight"),
        ("gpt2", "wte.weight"),
    ],
)
def test_a_tied_table_may_have_the_name_of_the_output_layer(kind, table, tmp_path):
    folder = save_tiny_lm(tmp_path / "lm", kind, dtypes.f32)
    tokens = np.array([[5, 9, 2, 41]])
    expected = load_model(folder, "ref").forward(tokens)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    own = next(name for name in tensors if name.endswith(table))
    tensors["lm_head.weight"] = tensors.pop(own)
    save_file(tensors, file)
    np.testing.assert_array_equal(load_model(folder, "ref").forward(tokens), expected)


@pytest.mark.parametrize("bad", ["x", True, [0, "x"], 1.5])
def test_an_end_token_that_is_none_is_refused(directory, tmp_path, bad):
    model = load_model(edited(directory, tmp_path / "edited", eos_token_id=bad), backend="ref")
    with pytest.raises(ModelError, match="`eos_token_id` must be a token"):
        _ = model.eos_tokens


def test_a_damaged_tokenizer_is_refused_when_it_is_used(directory, tmp_path):
    folder = edited(directory, tmp_path / "edited")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"the tokenizer in `tokenizer\.json` cannot be read"):
        _ = load_model(folder, backend="ref").tokenizer


@pytest.mark.parametrize("there", [True, False])
def test_whether_there_is_a_tokenizer_is_decided_once(tmp_path, there):
    folder = save_tiny_gpt2(tmp_path / "tiny", tokenizer=there)
    model = load_model(folder, backend="ref")
    file = folder / "tokenizer.json"
    assert model.has_tokenizer == file.exists() == there
    if there:
        file.unlink()
    else:
        file.write_text("{}", encoding="utf-8")
    assert model.has_tokenizer == there


def test_an_unknown_backend_is_refused(directory):
    with pytest.raises(PluginError, match="there is no backend `abacus`"):
        load_model(directory, backend="abacus")


def test_the_kind_in_a_file_is_no_misspelling_of_another_one(tmp_path):
    folder = save_tiny_gpt2(tmp_path / "tiny", model_type="gpt3")
    with pytest.raises(ModelError) as caught:
        load_model(folder, "ref")
    assert "there is no model kind `gpt3`" in str(caught.value)
    assert "did you mean" not in str(caught.value)
