"""`gptrs models`: list, pull, path and remove, against a hub on this machine."""

from __future__ import annotations

import importlib
import shutil

import pytest

from checkpoint.fake_hub import FakeHub, serving

pytest.importorskip("huggingface_hub")


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path, model_directory):
    """A hub that serves `some/tiny`, and an empty cache."""
    served = FakeHub()
    served.add_folder("some/tiny", model_directory)
    constants = importlib.import_module("huggingface_hub.constants")
    with serving(served):
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield
        importlib.import_module("huggingface_hub.utils").close_session()


def names(result):
    return [model["name"] for model in result.json["models"]]


def test_pull_list_path_remove(gptrs):
    def run(*arguments):
        return gptrs("models", *arguments)

    assert names(run("list", "--json")) == ["demo"]
    missing = run("path", "some/tiny")
    assert missing.code == 3
    assert "`gptrs models pull some/tiny` fetches it" in missing.err
    pulled = run("pull", "some/tiny", "--json")
    assert pulled.code == 0, pulled.err
    found = run("list", "--json")
    demo, tiny = found.json["models"]
    assert (demo["source"], tiny["source"], tiny["kind"]) == ("bundled", "hub", "gpt2")
    assert (tiny["name"], tiny["problem"]) == ("some/tiny", None)
    assert tiny["path"] == pulled.json["path"] == run("path", "some/tiny").out.strip()
    assert tiny["bytes"] == pulled.json["bytes"] > 0
    asked = run("remove", "some/tiny")
    assert asked.code == 2
    assert "needs a yes; add --yes" in asked.err
    removed = run("remove", "some/tiny", "--yes")
    assert removed.code == 0, removed.err
    assert removed.out.startswith("removed some/tiny, 1 revision, ")
    assert names(run("list", "--json")) == ["demo"]
    assert run("remove", "some/tiny", "--yes").code == 3


def test_folders_are_searched(gptrs, model_directory, tmp_path):
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "tiny").symlink_to(model_directory)
    shutil.copytree(model_directory, tmp_path / "mine" / "odd")
    (tmp_path / "mine" / "odd" / "config.json").write_text('{"model_type": "jetmoe"}')
    found = gptrs("models", "list", tmp_path / "mine", "--json").json["models"]
    by_name = {each["name"]: each for each in found if each["source"] == "folder"}
    assert by_name.keys() == {
        str(tmp_path / "mine" / "deep" / "tiny"),
        str(tmp_path / "mine" / "odd"),
    }
    assert by_name[str(tmp_path / "mine" / "deep" / "tiny")]["problem"] is None
    odd = by_name[str(tmp_path / "mine" / "odd")]
    assert odd["kind"] == "jetmoe"
    assert "jetmoe" in odd["problem"]
    shown = gptrs("models", "list", tmp_path / "mine")
    assert "no: " in shown.out
    assert gptrs("models", "list", tmp_path / "missing").code == 3


def test_names_and_paths(gptrs, model_directory):
    assert gptrs("models", "path", model_directory).out == f"{model_directory}\n"
    assert gptrs("models", "path", "demo").code == 0
    refused = gptrs("models", "pull", model_directory)
    assert refused.code == 2
    assert "is no name on the Hugging Face hub" in refused.err
