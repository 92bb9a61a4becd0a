"""`gptrs trace`: the hidden states of a run, as a table, as JSON and in a file."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from gptrs import load_model
from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import ModelError, UsageError
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_resnet import save_tiny_resnet

TOKENS = np.array([[5, 9, 2]])


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    return save_tiny_resnet(tmp_path_factory.mktemp("trace") / "resnet")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("trace") / "bert")


def test_states_are_shown_in_the_order_of_computation(gptrs, model_directory):
    result = gptrs("trace", "--model", model_directory, "--tokens", "5,9,2")
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["STATE", "MEAN", "STD", "MIN", "MAX", "NON-FINITE", "NORM", "TYPE"]
    states = load_model(model_directory, backend="ref").hidden_states(TOKENS)
    assert list(states) == ["embeddings", "layer.0", "layer.1"]
    for line, (name, state) in zip(lines, states.items(), strict=True):
        cells = line.split(maxsplit=7)
        assert (cells[0], cells[5], cells[7]) == (name, "0", "f32[1, 3, 32]")
        numbers = (state.mean(), state.std(), state.min(), state.max(), np.linalg.norm(state))
        for shown, value in zip([*cells[1:5], cells[6]], numbers, strict=True):
            assert float(shown) == pytest.approx(float(value), rel=1e-3, abs=1e-6)
    assert "3 states of tokens in " in result.err


def test_states_are_written(gptrs, model_directory, tmp_path, backend):
    out = tmp_path / "states.safetensors"
    run = ("trace", "--model", model_directory, "--tokens", "5,9,2", "--backend", backend.name)
    result = gptrs(*run, "--out", out)
    assert result.code == 0
    assert result.err.endswith(f", written to {out}\n")
    expected = load_model(model_directory, backend="ref").hidden_states(TOKENS)
    archive = open_archive(out)
    assert set(archive.names()) == set(expected)
    for name, state in expected.items():
        np.testing.assert_allclose(archive.read(name), state, rtol=1e-4, atol=1e-5)
    archive.close()


def test_json_holds_the_same(gptrs, model_directory):
    result = gptrs("trace", "--model", model_directory, "--prompt", "the cat", "--json")
    assert (result.code, result.err) == (0, "")
    fields = result.json
    assert fields.keys() == {"schema", "model", "kind", "backend", "inputs", "states", "timings"}
    assert fields["inputs"] == ["prompt"]
    last = fields["states"][-1]
    assert last.keys() == {"name", "type", "mean", "std", "min", "max", "non_finite", "norm"}
    model = load_model(model_directory, backend="ref")
    state = model.hidden_states(np.array([model.tokenizer.encode("the cat")]))["layer.1"]
    assert last["name"] == "layer.1"
    assert last["norm"] == pytest.approx(float(np.linalg.norm(state)), rel=1e-5)


def test_states_that_are_broken_show(gptrs, model_directory, monkeypatch):
    broken = {"embeddings": np.array([[[1, np.nan, np.inf, 3]]], np.float32)}
    monkeypatch.setattr("gptrs_runtime.load.LoadedModel.hidden_states", lambda *_: broken)
    run = ("trace", "--model", model_directory)
    line = gptrs(*run).out.splitlines()[1].split()
    assert line[:6] == ["embeddings", "2", "1", "1", "3", "50.00%"]
    broken["embeddings"][:] = np.nan
    (state,) = gptrs(*run, "--json").json["states"]
    assert (state["non_finite"], state["mean"], state["norm"]) == (1, "nan", "nan")


def test_an_image_model_is_traced_on_made_up_images(gptrs, resnet):
    fields = gptrs("trace", "--model", resnet, "--seed", 4, "--json").json
    assert fields["inputs"] == ["random input 4"]
    assert [state["name"] for state in fields["states"]] == [
        *("embeddings", "layer.0", "layer.1", "layer.2", "layer.3")
    ]
    assert fields["states"][0]["type"] == "f32[1, 4, 8, 8]"


def test_an_embedder_is_traced_on_text(gptrs, bert):
    result = gptrs("trace", "--model", bert, "--prompt", "the cat sat")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [
        *("embeddings", "layer.0", "layer.1")
    ]
    assert "f32[1, 5, 16]" in result.out
    assert gptrs("trace", "--model", bert, "--json").json["states"][0]["type"] == "f32[1, 8, 16]"


def test_states_are_asked_for_in_python_as_well(bert, resnet, model_directory):
    model = load_model(bert, backend="ref")
    tokens = np.array([[2, 4, 3]], np.int32)
    vectors = model.text_embedder().encode(tokens.astype(np.int64), np.ones((1, 3), bool))
    states = model.hidden_states(tokens)
    np.testing.assert_allclose(states["layer.1"], vectors, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="takes an integer array"):
        model.hidden_states(np.zeros((1, 3), np.float32))
    with pytest.raises(UsageError, match="41 tokens exceed the context of 40 tokens"):
        model.hidden_states(np.zeros((1, 41), np.int64))
    with pytest.raises(UsageError, match="takes images of floats"):
        load_model(resnet, backend="ref").hidden_states(tokens)
    plain = load_model(model_directory, backend="ref")
    plain.capabilities = frozenset({"causal_lm"})
    with pytest.raises(ModelError, match="`tiny` shows no hidden states"):
        plain.hidden_states(tokens)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--tokens", "1", "--prompt", "a"), 2, "`--tokens` and `--prompt` exclude each other"),
        (("--tokens", "1,100000"), 2, "token 100000 is not in the vocabulary"),
        (("--out", "x.txt"), 2, "names no format of tensors"),
        (("--out", "nowhere/x.npz"), 3, "its folder does not exist"),
    ],
)
def test_wrong_options_are_refused(gptrs, model_directory, options, code, message):
    result = gptrs("trace", "--model", model_directory, *options)
    assert result.code == code
    assert message in result.err
    assert result.out == ""


def test_names_of_modules_are_listed(gptrs, model_directory):
    result = gptrs("trace", "--model", model_directory, "--modules")
    assert result.out.splitlines()[:3] == ["wte", "wpe", "h.0"]
    assert gptrs("trace", "--model", model_directory, "--modules", "--json").json["modules"][2] == (
        "h.0"
    )


def test_modules_and_attention_are_written(gptrs, model_directory, tmp_path):
    out = tmp_path / "values.safetensors"
    asked = ("--module", "h.*.mlp", "--attention", "--tokens", "5,9,2", "--out", out)
    result = gptrs("trace", "--model", model_directory, *asked)
    assert result.code == 0
    assert "h.1.mlp.output" in result.out
    archive = open_archive(out)
    assert archive.read("h.0.mlp.input").shape == (1, 3, 32)
    assert archive.read("h.0.attn.attention").shape[-2:] == (3, 3)
    archive.close()


def test_the_lens_shows_tokens_by_state(gptrs, model_directory):
    asked = ("trace", "--model", model_directory, "--tokens", "5,9,2", "--logit-lens", 2)
    assert "TOKEN 1" in gptrs(*asked).out
    lens = gptrs(*asked, "--json").json["logit_lens"]
    assert [len(tokens) for tokens in lens.values()] == [2, 2, 2]
    assert set(lens["layer.0"][0]) == {"token", "probability", "text"}


@pytest.fixture
def kept(gptrs, model_directory, tmp_path) -> Path:
    """The values of one run, and a file in which one of them is not as it was."""
    out = tmp_path / "kept.npz"
    asked = ("--module", "h.*", "--tokens", "5,9,2", "--out", out)
    gptrs("trace", "--model", model_directory, *asked)
    values = dict(np.load(out))
    values["h.0.mlp.output"] = values["h.0.mlp.output"] + 0.5
    np.savez(tmp_path / "wrong.npz", **values)
    return out


def test_a_run_agrees_with_itself(gptrs, model_directory, kept, backend):
    asked = ("--module", "h.*", "--tokens", "5,9,2", "--against", kept, "--backend", backend.name)
    result = gptrs("trace", "--model", model_directory, *asked)
    assert result.code == 0, result.out
    assert "agree to 0.0001 of their range" in result.out


def test_the_first_mismatch_is_named_and_drawn(gptrs, model_directory, kept, tmp_path):
    wrong, svg = kept.with_name("wrong.npz"), tmp_path / "errors.svg"
    asked = ("trace", "--model", model_directory, "--module", "h.*", "--tokens", "5,9,2")
    result = gptrs(*asked, "--against", wrong, "--svg", svg)
    assert result.code == 1
    assert "the first that differs by more than 0.0001: h.0.mlp.output" in result.out
    root = ET.fromstring(svg.read_text())
    bars = [each for each in root.iter() if each.get("class") in ("good", "bad")]
    assert [bar.get("class") for bar in bars].count("bad") == 1
    stopped = gptrs(*asked, "--against", wrong, "--stop-on-first-mismatch", "--json")
    assert stopped.code == 1
    found = stopped.json["comparison"]
    assert found["first_mismatch"] == found["values"][-1]["name"] == "h.0.mlp.output"
    assert found["agrees"] is False


def test_a_comparison_needs_something_to_compare(gptrs, model_directory, tmp_path):
    asked = ("trace", "--model", model_directory, "--tokens", "5,9,2")
    assert gptrs(*asked, "--svg", tmp_path / "x.svg").code == 2
    np.savez(tmp_path / "other.npz", x=np.ones(3, np.float32))
    result = gptrs(*asked, "--against", tmp_path / "other.npz")
    assert result.code == 2
    assert "nothing to compare" in result.err
    assert gptrs(*asked, "--against", tmp_path / "missing.npz").code == 3
    unknown = gptrs(*asked, "--module", "h.0.mpl")
    assert unknown.code == 2
    assert "near it: `h.0.mlp`" in unknown.err


def test_torch_computes_the_same_modules(gptrs, model_directory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    asked = ("--module", "h.0.*", "--tokens", "5,9,2", "--against", "torch", "--json")
    result = gptrs("trace", "--model", model_directory, *asked)
    assert result.code == 0, result.err
    names = [value["name"] for value in result.json["comparison"]["values"]]
    assert "h.0.mlp.output" in names
    assert "layer.1" in names
