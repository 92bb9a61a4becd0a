"""References of plugins: `validate`, `trace --against` and `bench` compare with them."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs as gptrs_core
from gptrs.errors import ModelError, PluginError
from gptrs.plugins.descriptions import ReferencePlugin
from gptrs.plugins.manager import configure, manager
from gptrs.plugins.references import Reference, reference_names, reference_of

SOURCE = """
import numpy as np
import gptrs
from gptrs.api import ReferencePlugin
from gptrs.api.models import Reference

def describe(name, kinds, **more):
    return ReferencePlugin(
        name=name, summary="s", kinds=kinds, factory=f"references:{name}", api="0.1", **more
    )

class Own(Reference):
    def __init__(self, model):
        self.model = gptrs.load_model(model.path, backend="ref")
        assert set(model.weights.names())

    @property
    def versions(self):
        return {"own": "3.2"}

    def output(self, inputs):
        return self.model.forward(inputs)

    def hidden_states(self, inputs):
        return list(self.model.hidden_states(inputs).values())

def exact(model):
    return Own(model)

def wrong(model):
    made = Own(model)
    return lambda inputs: made.output(inputs) + 1.0 * (inputs[..., None] == 5)

def number(model):
    return 7

def raises(model):
    raise ZeroDivisionError("oops")

EXACT = describe("exact", ("gpt2",), priority=2)
WRONG = describe("wrong", ("gpt2", "llama"), priority=1)
NUMBER = describe("number", ("*",), priority=9)
RAISES = describe("raises", ("mamba",))
"""
NAMES = ("exact", "wrong", "number", "raises")


@pytest.fixture
def references(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    metadata = folder / "references_of_strangers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "references.py").write_text(SOURCE)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: references-of-strangers\nVersion: 1.0\n"
    )
    lines = [f"{name} = references:{name.upper()}" for name in NAMES]
    (metadata / "entry_points.txt").write_text("\n".join(["[gptrs.references]", *lines]) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    configure()
    yield
    monkeypatch.undo()
    configure()


def test_one_for_the_kind_comes_first_then_the_higher_priority(references):
    assert reference_names("gpt2")[:3] == ["exact", "wrong", "number"]
    assert reference_names("llama")[:2] == ["wrong", "number"]
    assert set(NAMES) <= set(reference_names())


def test_a_reference_agrees(gptrs, references, model_directory):
    result = gptrs("validate", "--model", model_directory, "--max-tokens", 4, "--per-layer")
    assert result.code == 0, result.err
    assert "agrees with `exact`" in result.err
    assert "own 3.2" in result.err
    assert "greedy tokens: all 4 are the same" in result.out


def test_a_function_is_a_reference_and_differences_are_found(gptrs, references, model_directory):
    run = ("validate", "--model", model_directory, "--reference", "wrong", "--tokens", "1,5,3")
    result = gptrs(*run, "--json", "--max-tokens", 0)
    assert result.code == 1, result.err
    assert result.json["agrees"] is False
    assert result.json["reference"] == {}
    states = gptrs(*run, "--per-layer")
    assert states.code != 0
    assert "has no hidden states" in states.err


def test_traces_are_compared_with_a_reference(gptrs, references, model_directory):
    result = gptrs("trace", "--model", model_directory, "--tokens", "1,2", "--against", "exact")
    assert result.code == 0, result.err
    assert "agree to" in result.out


def test_a_reference_is_measured_beside_the_model(gptrs, references, model_directory):
    run = ("bench", "forward", "--model", model_directory, "--tokens", 4, "--rounds", 1)
    rows = gptrs(*run, "--reference", "exact", "--json").json["rows"]
    peers = {row["peer_name"] for row in rows if row["work"].startswith("forward of")}
    assert "exact" in peers


def test_what_is_no_reference_is_named(references, model_directory):
    model = gptrs_core.load_model(model_directory)
    with pytest.raises(PluginError, match=r"`number`.*made a `int`"):
        reference_of(model, "number")
    with pytest.raises(PluginError, match="`raises` is for models of mamba, not for `gpt2`"):
        reference_of(model, "raises")
    with pytest.raises(PluginError, match="nowhere"):
        reference_of(model, "nowhere")
    with pytest.raises(PluginError, match="kinds"):
        ReferencePlugin(name="x", summary="s", kinds=(), factory="a:b", api="0.1")


def test_a_kind_without_a_reference(references, monkeypatch, model_directory):
    model = gptrs_core.load_model(model_directory)
    monkeypatch.setattr(type(manager()), "descriptions", lambda *_: [])
    with pytest.raises(ModelError, match="no reference for models of the kind `gpt2`"):
        reference_of(model)


class Successor(Reference):
    """The next token is one more than the last."""

    def output(self, inputs):
        return np.eye(10, dtype=np.float32)[(inputs + 1) % 10]


def test_greedy_tokens_need_only_the_output():
    rows = Successor().greedy(np.array([3, 4]), 3)
    assert rows.argmax(-1).tolist() == [5, 6, 7]
    assert not Successor().modules(np.zeros((1, 1)), ["x"])
