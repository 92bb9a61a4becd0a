"""ONNX files on the command line, by the importer of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gptrs_cli.main import main

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
parser = pytest.importorskip("onnx.parser", reason="these tests read ONNX models")


def test_a_file_is_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    m (float[n, 2] x) => (float[n, 2] y) { y = Relu (x) }""")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    seeds = ("--random-seed", "1", "--symbol", "n=3")
    assert main(["run", str(tmp_path / "m.onnx"), *seeds, "--json", "--backend", "ref"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["name"], result["dtype"], result["shape"]) == ("y", "f32", [3, 2])
    assert min(map(min, result["values"])) >= 0


def test_random_numbers_follow_from_the_seed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    m (float[3] x) => (float[3] y) { y = RandomNormalLike (x) }""")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())

    def drawn(*seed: str) -> list[float]:
        words = ["run", str(tmp_path / "m.onnx"), "--random-seed", "1", "--backend", "ref"]
        assert main([*words, "--json", *seed]) == 0
        return json.loads(capsys.readouterr().out)["results"][0]["values"]

    first, again, other = (drawn("--seed", seed) for seed in ("3", "3", "4"))
    assert first == again != other
    words = ["run", str(tmp_path / "m.onnx"), "--random-seed", "1", "--backend", "ref"]
    assert main(words) != 0
    assert "--seed 0" in capsys.readouterr().err


def test_listing_the_importer_imports_no_onnx() -> None:
    code = "import gptrs_onnx.plugin, sys; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
