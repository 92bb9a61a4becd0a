"""`--profile` and `--profile-out` on the commands that run programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

PROGRAM = """
ptir.v0.5
func @main(%x: f32[2, 3]) -> f32[2, 3] {
  %0 = tanh %x : f32[2, 3]
  return %0
}
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "tanh.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_generate_shows_a_table_on_stderr(gptrs, model_directory):
    asked = ("generate", "--model", model_directory, "--prompt-ids", "1,2", "--max-tokens", 3)
    plain, profiled = gptrs(*asked), gptrs(*asked, "--profile")
    assert profiled.out == plain.out
    assert "asked for by" not in plain.err
    assert "asked for by" in profiled.err
    assert "jit _next_logits on ref" in profiled.err


def test_json_carries_the_profile(gptrs, model_directory):
    asked = ("generate", "--model", model_directory, "--prompt-ids", "1,2", "--max-tokens", 3)
    result = gptrs("--profile", *asked, "--json")
    assert result.err == ""
    programs = result.json["profile"]["programs"]
    assert sum(program["runs"] for program in programs) == 3
    assert "profile" not in gptrs(*asked, "--json").json


def test_run_has_it_too(gptrs, program):
    result = gptrs("run", program, "--random-seed", 1, "--profile", "--json")
    (found,) = result.json["profile"]["programs"]
    assert (found["origin"], found["backend"], found["runs"]) == ("run_program", "ref", 1)


def test_a_folder_gets_a_page_and_files_for_other_programs(gptrs, program, tmp_path):
    folder = tmp_path / "new" / "profile"
    result = gptrs("run", program, "--random-seed", 1, "--profile-out", folder)
    assert f"profile written to {folder}" in result.err
    found = json.loads((folder / "profile.json").read_text())
    assert (found["format"], found["version"]) == ("gptrs-profile", 1)
    assert found["programs"][0]["runs"] == 1
    assert "run_program on ref" in (folder / "profile.txt").read_text()
    assert "run_program" in (folder / "report.html").read_text()
    assert {each.name for each in folder.iterdir()} == {
        "profile.json",
        "profile.speedscope.json",
        "profile.txt",
        "report.html",
        "trace.json",
    }


def test_nearly_all_time_of_a_command_is_attributed(gptrs, model_directory, tmp_path):
    """Twice, as a busy machine can stop the process anywhere."""
    shares, found = list[float](), dict[str, Any]()
    for turn in range(2):
        asked = ("--prompt-ids", "1,2", "--max-tokens", 8, "--profile-out", tmp_path / str(turn))
        gptrs("generate", "--model", model_directory, *asked)
        found = json.loads((tmp_path / str(turn) / "profile.json").read_text())
        shares.append(found["attribution"]["attributed"])
    assert max(shares) >= 0.95, found["attribution"]
    names = {part["name"] for part in found["attribution"]["parts"]}
    assert {"load model", "programs", "step", "choose token", "not attributed"} <= names
    assert found["verdict"]["tokens"] == 8


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(gptrs, program, tmp_path):
    (tmp_path / "file").write_text("")
    result = gptrs("run", program, "--random-seed", 1, "--profile-out", tmp_path / "file" / "below")
    assert result.code == 3
    assert result.out == ""
    assert "cannot make the folder" in result.err


def test_the_kernels_of_the_numba_backend_are_named(gptrs, program):
    pytest.importorskip("gptrs_backend_numba")
    result = gptrs("run", program, "--random-seed", 1, "--profile", "--backend", "numba", "--json")
    (kernel,) = result.json["profile"]["kernels"]
    assert (kernel["kernel"], kernel["calls"], kernel["bytes"]) == ("tanh", 1, 48)
    assert kernel["operands"] == "f32[2, 3] -> f32[2, 3]"
