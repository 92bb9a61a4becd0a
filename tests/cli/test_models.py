"""`gptrs models`: list, pull, path and remove, against a hub on this machine."""

from __future__ import annotations

import importlib
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from checkpoint.fake_hub import FakeHub, serving
from fuzzing import tiny_gguf
from gptrs_cli.commands.models import shown_age

pytest.importorskip("huggingface_hub")


@pytest.fixture(autouse=True)
def hub(monkeypatch, tmp_path, model_directory):
    """A hub that serves `some/tiny`, and an empty cache."""
    served = FakeHub()
    served.add_folder("some/tiny", model_directory)
    constants = importlib.import_module("huggingface_hub.constants")
    with serving(served):
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served
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


def test_gguf_files_of_the_hub_are_models_of_their_own(gptrs, hub):
    content = tiny_gguf.llama()
    files = {"m-Q4_0.gguf": content, "m-Q8_0.gguf": content + bytes(32), "copy.txt": b""}
    hub.add("some/gguf", files)

    def run(*arguments):
        return gptrs("models", *arguments)

    for tag in ("Q4_0", "q8_0"):
        pulled = run("pull", f"hf.co/some/gguf:{tag}", "--json")
        assert (pulled.code, pulled.json["kind"]) == (0, "llama"), pulled.err
    assert pulled.json["bytes"] == len(content) + 32
    assert names(run("list", "--json")) == ["demo", "some/gguf:Q4_0", "some/gguf:Q8_0"]
    assert run("path", "some/gguf:Q8_0").out.strip() == pulled.json["path"]
    assert "just now" in run("list").out
    absent = run("remove", "some/gguf:Q5_0", "--yes")
    assert absent.code == 3
    removed = run("remove", "some/gguf:Q4_0", "--yes", "--json")
    assert (removed.code, removed.json["bytes"]) == (0, len(content)), removed.err
    assert names(run("list", "--json")) == ["demo", "some/gguf:Q8_0"]
    assert run("remove", "some/gguf", "--yes").code == 0
    assert names(run("list", "--json")) == ["demo"]


def test_a_file_that_another_commit_needs_stays(gptrs, hub):
    content = tiny_gguf.llama()
    hub.add("some/gguf", {"m-Q4_0.gguf": content, "m-Q8_0.gguf": content + bytes(32)}, "old")
    hub.add("some/gguf", {"m-Q4_0.gguf": content, "m-F16.gguf": content + bytes(64)})
    for name in ("some/gguf@old:Q4_0", "some/gguf@old:Q8_0", "some/gguf:Q4_0"):
        assert gptrs("models", "pull", name).code == 0
    removed = gptrs("models", "remove", "some/gguf@old:Q4_0", "--yes", "--json")
    assert (removed.code, removed.json["bytes"]) == (0, 0), removed.err
    assert gptrs("inspect", "some/gguf:Q4_0").code == 0
    listed = names(gptrs("models", "list", "--json"))
    assert listed == ["demo", "some/gguf:Q4_0", "some/gguf@old:Q8_0"]


@pytest.mark.parametrize(
    ("hours", "shown"),
    [(0.01, "just now"), (0.5, "30 minutes ago"), (30, "1 day ago"), (24 * 800, "2 years ago")],
)
def test_the_age_of_a_model(hours, shown):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert shown_age(moment, moment + timedelta(hours=hours)) == shown


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
    assert "is not a name on the Hugging Face hub" in refused.err
    near = gptrs("models", "pull", "smollm2:999m")
    assert "`smollm2:135m`? names are ORG/NAME" in near.err
