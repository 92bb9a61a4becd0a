"""Models of the hub with modules: whose folders are fetched, and which never are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint.model_folders import require_the_model, sharded, single, write_json
from gptrs_runtime.sources import hub as hub_module
from gptrs_runtime.sources.find_model import find_model

pytest.importorskip("huggingface_hub")


def _entries(**folders: str) -> list[dict[str, str]]:
    """The entries of modules.json: a transformer in the folder itself, and modules in others."""
    modules = {"Transformer": "", **folders}
    kinds = {kind: f"sentence_transformers.models.{kind}" for kind in modules}
    return [{"type": kinds[kind], "path": folder} for kind, folder in modules.items()]


def _with_modules(folder: Path, modules: object, *names: str) -> Path:
    """A model whose modules.json holds `modules`, with settings and weights in these folders."""
    single(folder)
    write_json(folder / "modules.json", modules)
    for name in names:
        (folder / name).mkdir()
        write_json(folder / name / "config.json", {"of": name})
        save_file({f"of {name}": np.ones(2)}, folder / name / "model.safetensors")
        (folder / name / "pytorch_model.bin").write_bytes(b"never")
    return folder


def test_folders_are_those_that_modules_json_names(hub, tmp_path):
    modules = _entries(Pooling="pool [mean]", Dense="9_Dense", Normalize="2_Normalize")
    folder = _with_modules(tmp_path / "source", modules, "pool [mean]", "9_Dense", "1_Pooling")
    hub.add_folder("org/tiny", folder)
    source = find_model("org/tiny")
    require_the_model(source)
    assert source.read_json("config.json", "pool [mean]") == {"of": "pool [mean]"}
    dense = source.tensors_in("9_Dense")
    assert dense is not None
    assert dense.keys() == {"of 9_Dense"}
    assert {name for name in hub.fetched() if "/" in name} == {
        "pool [mean]/config.json", "pool [mean]/model.safetensors",
        "9_Dense/config.json", "9_Dense/model.safetensors",
    }  # fmt: skip


def test_modules_in_the_cache_are_not_fetched_again(hub, tmp_path, monkeypatch):
    folder = _with_modules(tmp_path / "source", _entries(Pooling="a_Pooling"), "a_Pooling")
    hub.add_folder("org/tiny", folder)
    find_model("org/tiny")
    hub.requests.clear()
    find_model("org/tiny")
    assert hub.fetched() == set()
    monkeypatch.setattr(
        importlib.import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", True
    )
    hub.requests.clear()
    source = find_model("org/tiny")
    assert source.read_json("config.json", "a_Pooling") == {"of": "a_Pooling"}
    assert hub.requests == []


def test_modules_and_shards_are_of_the_commit_that_names_them(hub, tmp_path, monkeypatch):
    folder = _with_modules(tmp_path / "source", _entries(Pooling="a_Pooling"), "a_Pooling")
    (folder / "model.safetensors").unlink()
    commit = hub.add_folder("org/tiny", sharded(folder))
    add_later = partial(hub.add, "org/tiny", {"a_Pooling/config.json": b'{"of": "later"}'})
    monkeypatch.setattr(hub_module, "shards_of", _after(add_later, hub_module.shards_of))
    source = find_model("org/tiny")
    require_the_model(source)
    assert source.path.name == commit
    assert source.read_json("config.json", "a_Pooling") == {"of": "a_Pooling"}


def _after(first: Callable[[], object], then: Callable[[Path], object]) -> Callable[[Path], object]:
    def both(folder: Path) -> object:
        first()
        return then(folder)

    return both


@pytest.mark.parametrize(
    "modules",
    [
        _entries(Pooling="../evil"),
        _entries(Pooling="/evil"),
        _entries(Pooling="evil/.."),
        _entries(Pooling="deep/evil"),
        _entries(Pooling="..\\evil"),
        _entries(Pooling=".."),
        _entries(Pooling="."),
        _entries(Transformer="evil"),
        [{"type": "x", "path": 3}, "evil", ["evil"], {"path": "evil"}],
        _entries(Pooling="evil") * 9,
        {"path": "evil"},
        "evil",
        float("nan"),
    ],
)
def test_no_other_folders_are_fetched(hub, tmp_path, modules):
    folder = _with_modules(tmp_path / "source", modules)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    paths = ("evil", "../evil", "../../evil", "deep/evil", "evil/..", "/evil", ".", "..")
    evil = {f"{path}/{name}": b"{}" for path in paths for name in ("config.json", "e.json")}
    hub.add("org/evil", {**files, **evil})
    require_the_model(find_model("org/evil"))
    assert hub.fetched() == {"config.json", "model.safetensors", "modules.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "source"]
