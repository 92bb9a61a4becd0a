"""A stranger's kind of model: two files, installed for real by pip, and run by the command."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptrs import load_model
from gptrs.errors import ModelError
from plugins.attention_only_model import greedy_tokens, save_attention_only
from plugins.conftest import HERE, installed, probe_of

BATCH = """
import gptrs
model = gptrs.load_model(FOLDER, backend="ref")
options = gptrs.GenerationOptions(max_tokens=6, sampling=gptrs.Sampling(temperature=0))
texts = gptrs.generate_batch(model, [[4, 9, 2], [7, 1, 1, 3, 20]], options)
answer = [text.token_ids for text in texts]
"""


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example."""
    return installed(tmp_path_factory, "attention_only", ["attention_only"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_attention_only(tmp_path_factory.mktemp("kinds") / "small")


def gptrs_cli(folder: Path | None, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gptrs_cli", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(folder or "")},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.sample(0)
def test_it_generates_what_its_definition_says(stranger, model, backend):
    run = gptrs_cli(
        *(stranger, "generate", "--model", model, "--prompt-ids", "4,9,2", "--greedy", "--json"),
        *("--max-tokens", 8, "--backend", backend.name),
    )
    assert run.returncode == 0, run.stderr
    fields = json.loads(run.stdout)
    assert fields["token_ids"] == greedy_tokens(model, [4, 9, 2], 8)


def test_texts_of_unequal_length_go_together(stranger, model):
    found = probe_of(stranger)(BATCH.replace("FOLDER", repr(str(model))))["answer"]
    prompts = ([4, 9, 2], [7, 1, 1, 3, 20])
    assert found == [greedy_tokens(model, prompt, 6) for prompt in prompts]


def test_it_is_listed(stranger):
    listed = gptrs_cli(stranger, "list", "models").stdout
    (row,) = [line for line in listed.splitlines() if line.startswith("attention_only ")]
    assert "attention-only" in row
    assert "0.4.0" in row


def test_its_states_can_be_looked_at(stranger, model):
    run = gptrs_cli(stranger, "trace", "--model", model, "--json", "--backend", "ref")
    assert run.returncode == 0, run.stderr
    names = [state["name"] for state in json.loads(run.stdout)["states"]]
    assert names == ["embeddings", "layer.0", "layer.1"]


def test_what_it_does_not_support_is_said_by_name(stranger, tmp_path):
    folder = save_attention_only(tmp_path / "m", rotary=True)
    run = gptrs_cli(stranger, "generate", "--model", folder, "--prompt-ids", "1")
    assert run.returncode == 3
    assert "`rotary`" in run.stderr


def test_without_its_package_the_kind_is_unknown(model):
    with pytest.raises(ModelError, match="`attention_only`"):
        load_model(model, backend="ref")


def test_the_example_is_two_files_and_knows_public_names_only():
    files = sorted(path for path in (HERE / "attention_only").iterdir() if path.is_file())
    assert [path.name for path in files] == ["attention_only.py", "pyproject.toml"]
    nodes = ast.walk(ast.parse(files[0].read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}." for node in imports for alias in node.names}
    ours = {name for name in names if name.startswith("gptrs.")}
    assert ours
    assert {name for name in ours if not name.startswith("gptrs.api.")} == set()
