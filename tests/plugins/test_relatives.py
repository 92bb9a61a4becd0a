"""Kinds of models that are known and not supported: what is nearest."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs.api import ModelPlugin
from gptrs.errors import ModelError, PluginError
from gptrs.plugins.manager import manager


def test_a_known_kind_is_refused_with_the_nearest(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "flaubert"}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError) as caught:
        gptrs.load_model(tmp_path, backend="ref")
    assert "no model kind `flaubert`; the nearest architecture is `bert`" in str(caught.value)
    assert "add_a_model_kind.md" in str(caught.value)
    assert "docs/torch.md" in str(caught.value)


@pytest.mark.parametrize("kind", ["rwkv", "lama", "gpt3"])
def test_no_kind_is_suggested_for_how_it_is_spelled(kind):
    """The file says it: nobody mistyped a name, and another kind would give another text."""
    with pytest.raises(ModelError) as caught:
        manager().model_factory(kind)
    said = str(caught.value)
    assert said.startswith(f"there is no model kind `{kind}`; `gptrs list models` shows")
    assert "did you mean" not in said
    assert "run as an export of torch (docs/torch.md)" in said
    assert not any(name in said.split() for name in ("`llama`", "`gpt2`"))


@pytest.mark.long
def test_relatives_are_kinds_that_nobody_has():
    found = manager().relatives()
    installed = {record.name for record in manager().records(ModelPlugin)}
    assert len(found) > 60
    assert not found.keys() & installed
    assert set(found.values()) <= installed
    known = pytest.importorskip("transformers", reason="knows the kinds").CONFIG_MAPPING
    assert sum(name in known for name in found) > 0.8 * len(found)


@pytest.mark.parametrize("relatives", ["ernie", (3,), ("a b",)])
def test_malformed_relatives_are_refused(relatives):
    with pytest.raises(PluginError, match=r"`ModelPlugin.relatives` must be a tuple of names"):
        ModelPlugin(name="x", summary="x", api="0.1", factory="a:b", relatives=relatives)
