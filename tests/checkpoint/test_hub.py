"""Models of the hub: what is fetched, from where, how often, and what is said where it fails."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from checkpoint.model_folders import require_the_model, sharded, single, write_json
from gptrs.errors import MissingLibraryError, ModelError
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hub import HubModel

pytest.importorskip("huggingface_hub")


def _refusal(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        find_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_the_files_that_are_read_are_fetched(hub, tmp_path):
    folder = single(tmp_path / "source")
    write_json(folder / "tokenizer.json", {})
    write_json(folder / "chat_template.json", {"chat_template": ""})
    (folder / "onnx").mkdir()
    write_json(folder / "onnx" / "config.json", {})
    for name in ("pytorch_model.bin", "README.md", "consolidated.safetensors", "model.py"):
        (folder / name).write_bytes(b"never")
    commit = hub.add_folder("org/tiny", folder)
    source = find_model("org/tiny")
    require_the_model(source)
    assert (source.name, source.model_type) == ("org/tiny", "tiny")
    assert source.path.name == commit
    settings = {"config.json", "tokenizer.json", "chat_template.json"}
    assert hub.fetched() == {*settings, "model.safetensors"}


def test_shards_are_those_of_the_index(hub, tmp_path):
    folder = sharded(tmp_path / "source")
    (folder / "three.safetensors").write_bytes(b"never")
    hub.add_folder("org/tiny", folder)
    require_the_model(find_model("org/tiny"))
    assert "two.safetensors" in hub.fetched()
    assert "three.safetensors" not in hub.fetched()


def test_what_is_in_the_cache_is_not_fetched_again(hub, tmp_path, monkeypatch):
    hub.add_folder("org/tiny", sharded(tmp_path / "source"))
    find_model("org/tiny")
    hub.requests.clear()
    require_the_model(find_model("org/tiny"))
    assert hub.fetched() == set()
    hub.requests.clear()
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    require_the_model(find_model("org/tiny"))
    assert hub.requests == []


def test_without_a_connection_the_cache_has_to_do(hub, tmp_path, monkeypatch):
    hub.add_folder("org/tiny", single(tmp_path / "source"))
    find_model("org/tiny")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    require_the_model(find_model("org/tiny"))
    message = _refusal("org/other")
    assert "`org/other` does not exist here, is not whole in the cache" in message
    assert "HF_HUB_OFFLINE" in message


def test_offline_and_not_in_the_cache(hub, monkeypatch):
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "and the hub cannot be asked" in _refusal("org/tiny")
    assert hub.requests == []


def test_revisions(hub, tmp_path):
    folder = single(tmp_path / "source")
    old = hub.add_folder("org/tiny", folder)
    write_json(folder / "config.json", {"model_type": "new"})
    hub.add_folder("org/tiny", folder, "v2.0")
    assert find_model("org/tiny").model_type == "tiny"
    assert find_model("org/tiny@v2.0").model_type == "new"
    assert find_model(f"org/tiny@{old}").model_type == "tiny"
    message = _refusal("org/tiny@v3")
    assert "`org/tiny` on the Hugging Face hub has no revision `v3`" in message


def test_a_model_that_does_not_exist(hub):
    message = _refusal("org/absent")
    assert "`org/absent` does not exist, neither here nor, for all to read, on the" in message
    assert "`hf auth login`" in message


def test_a_model_for_which_one_needs_leave(hub, tmp_path):
    hub.add_folder("org/gated", single(tmp_path / "source"))
    hub.errors["org/gated"] = (401, "GatedRepo")
    assert "`org/gated` may be read only by those" in _refusal("org/gated")
    hub.errors["org/gated"] = (403, "GatedRepo")
    assert "`org/gated` may be read only by those" in _refusal("org/gated")


def test_a_hub_that_fails(hub, tmp_path):
    hub.add_folder("org/tiny", single(tmp_path / "source"))
    hub.errors["org/tiny"] = (501, "")
    assert "`org/tiny` " in _refusal("org/tiny")


def test_a_repository_without_safetensors(hub, tmp_path):
    hub.add("org/old", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    assert "has neither `model.safetensors` nor" in _refusal("org/old")
    assert hub.fetched() == {"config.json"}


def test_files_that_lead_out_of_the_folder_are_never_written(hub, tmp_path):
    files = {path.name: path.read_bytes() for path in sharded(tmp_path / "source").iterdir()}
    evil = {"../../../../../evil.json": b"{}", "1_Pooling/../../../../../evil.json": b"{}"}
    hub.add("org/evil", {**files, **evil})
    require_the_model(find_model("org/evil"))
    assert not any("evil" in name for name in hub.fetched())
    weight_map = {"w": "../../../../../evil.safetensors"}
    index = {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
    hub.add("org/worse", {**files, **index, **evil, weight_map["w"]: b"x"})
    assert "not the plain name of a file in the folder" in _refusal("org/worse")
    assert not list(tmp_path.rglob("evil*"))


def test_a_path_that_exists_wins(hub, tmp_path):
    hub.add("org/tiny", {"config.json": b"{}"})
    single(tmp_path / "org" / "tiny")
    source = find_model("org/tiny")
    require_the_model(source)
    assert source.path == Path("org/tiny")
    assert hub.requests == []


def test_the_library_is_needed_for_hub_ids_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "huggingface_hub":
            raise ModuleNotFoundError("No module named 'huggingface_hub'")
        return original(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("huggingface_hub")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(builtins, "__import__", without)
    require_the_model(find_model(single(tmp_path / "m")))
    with pytest.raises(MissingLibraryError, match="`org/tiny` does not exist here") as caught:
        find_model("org/tiny")
    assert "pip install 'huggingface-hub>=" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubModel("org/name")),
        ("Qwen/Qwen3-0.6B@v1.0", HubModel("Qwen/Qwen3-0.6B", "v1.0")),
        ("o/n@refs/pr/1", HubModel("o/n", "refs/pr/1")),
        ("name", None),
        ("a/b/c", None),
        ("/a/b", None),
        ("./a", None),
        ("../a", None),
        ("a/..", None),
        ("a/b@../c", None),
        ("a/b@", None),
        ("models/one.gptrschk", None),
        ("a b/c", None),
        ("ä/b", None),
    ],
)
def test_what_a_hub_id_is(text, expected):
    assert HubModel.parse(text) == expected


def test_the_library_is_not_imported_before_it_is_needed(tmp_path):
    script = "import sys, gptrs_runtime.load; sys.exit('huggingface_hub' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", script]) == 0
