"""Models of the hub by their ids, as a user meets them: in a process with the usual variables."""

from __future__ import annotations

import pytest

from checkpoint.fake_hub import FakeHub, serving

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(model_directory):
    served = FakeHub()
    served.add_folder("some/tiny", model_directory)
    with serving(served):
        yield served


@pytest.mark.long
def test_a_hub_id_in_place_of_a_folder(gptrs_process, hub, tmp_path):
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
    options = ("--prompt", "the cat", "--max-tokens", "2", "--greedy", "--json")
    generated = gptrs_process("generate", "--model", "some/tiny", *options, environment=environment)
    assert generated.code == 0, generated.err
    assert generated.json["model"] == "some/tiny"
    assert f"asking {hub.url} for the model `some/tiny`" in generated.err
    assert len(generated.json["token_ids"]) == 2
    ran = gptrs_process("run", "some/tiny", *options, environment=environment)
    assert ran.code == 0, ran.err
    assert ran.err.count("asking") == 1
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    inspected = gptrs_process("inspect", "some/tiny@main", "--json", environment=offline)
    assert inspected.code == 0, inspected.err
    assert inspected.json["kind"] == "gpt2"
    assert "asking" not in inspected.err
    missing = gptrs_process("inspect", "some/other", "--json", environment=environment)
    assert missing.code == 3
    assert "neither here nor" in missing.json["message"]


def test_a_cache_that_cannot_be_written_is_an_error_without_warnings_of_the_library(
    gptrs_process, hub, tmp_path
):
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
    parts = tmp_path / "hub" / "models--some--tiny"
    parts.mkdir(parents=True)
    for name in ("trees", "refs", "blobs"):  # folders of the library; it only warns of two
        (parts / name).touch()
    pulled = gptrs_process("pull", "some/tiny", environment=environment)
    assert pulled.code == 3
    told, problem = pulled.err.splitlines()
    assert told.startswith("asking ")
    assert problem.startswith("error: cannot get `some/tiny` from the Hugging Face hub: ")
    assert problem.endswith("; models are kept in HF_HOME, which must be a folder to write to")


def test_no_hub_is_asked_for_a_path_that_was_mistyped(gptrs, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").mkdir()
    result = gptrs("inspect", "some/tiny")
    assert result.code == 3
    assert result.err == (
        "error: `some/tiny` does not exist in the folder `some`; for the model of this name on the"
        " Hugging Face hub, write `some/tiny@main`\n"
    )
    assert not hub.requests
