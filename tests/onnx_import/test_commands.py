"""Commands of `gptrs` on ONNX files: forward, inspect, bench and validate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import json_results
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs_cli.main import main

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
parser = pytest.importorskip("onnx.parser", reason="these tests read ONNX models")

CLASSIFIER = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[batch, 3, height, width] x) => (float[batch, 3] y) {
  p = GlobalAveragePool (x)
  y = Flatten (p)
}"""
REFUSED = """
<ir_version: 10, opset_import: ["" : 21, "house" : 1]>
net (float[n] x) => (float[n] y) { y = house.Unheard (x) }"""

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> Run:
    monkeypatch.chdir(tmp_path)
    for name, text in (("net.onnx", CLASSIFIER), ("refused.onnx", REFUSED)):
        Path(name).write_bytes(parser.parse_model(text).SerializeToString())
    levels = np.zeros((1, 3, 4, 4), np.float32)
    levels[0, 1] = 2
    write_archive(tmp_path / "x.npz", {"x": levels})
    write_archive(tmp_path / "right.npz", {"y": np.array([[0, 2, 0]], np.float32)})
    write_archive(tmp_path / "wrong.npz", {"y": np.array([[0, 2, 1]], np.float32)})

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        found = json.loads(capsys.readouterr().out)
        jsonschema.validate(found, json.loads(json_results.SCHEMA.read_text()))
        return code, found

    return run


REF = ("--backend", "ref")


def test_forward_of_tensors_and_of_an_image(run):
    code, found = run("forward", "--model", "net.onnx", "--input", "x.npz", "--top", "1", *REF)
    assert (code, found["kind"], found["output"]) == (0, "onnx", "y")
    ((best,),) = found["top"]
    assert (best["index"], best["logit"], best["name"]) == (1, 2.0, "LABEL_1")
    images = pytest.importorskip("PIL.Image", reason="images are read by Pillow")
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    images.fromarray(red).save("red.png")
    code, found = run("forward", "--model", "net.onnx", "--input", "red.png", *REF)
    assert (code, found["inputs"], found["top"][0][0]["index"]) == (0, ["red.png"], 0)


@pytest.mark.long
def test_inspect_tells_interface_program_and_what_is_refused(run):
    code, found = run("inspect", "net.onnx")
    assert (code, found["importer"], found["outputs"], found["refused"]) == (0, "onnx", ["y"], None)
    assert found["inputs"][0]["shape"] == ["batch", 3, "height", "width"]
    assert found["sizes"] == {}
    assert found["program"]["inputs"][0]["type"] == "f32[?0, 3, ?1, ?2]"
    code, found = run("inspect", "net.onnx", "--symbol", "height=8")
    assert found["sizes"] == {"batch": 1, "height": 8, "width": 224}
    assert found["program"]["inputs"][0]["type"] == "f32[1, 3, 8, 224]"
    assert (found["takes"], found["gives"]) == (
        {"x": "f32[batch, 3, height, width]"}, {"y": "f32[batch, 3]"},
    )  # fmt: skip
    assert found["ops"] == {"GlobalAveragePool": 1, "Flatten": 1}
    assert found["weights"] == {"tensors": 0, "elements": 0, "bytes": 0}
    code, found = run("inspect", "refused.onnx")
    assert (code, found["program"]) == (0, None)
    assert "Unheard" in found["refused"]
    assert "supported_operators()" in found["refused"]
    assert found["missing"] == {"house.Unheard": "no converter"}
    code, found = run("convert", "refused.onnx", "out.onnx")
    assert found["hint"] == "`gptrs_onnx.supported_operators()` lists those that it converts"
    code, found = run("inspect", "net.onnx", "--symbol", "depth=8")
    assert (code, found["hint"]) == (2, "it has batch, height, width")


UNRUNNABLE = {
    "an old operator set": ('["" : 3]', "float[n] x", "float[n] y", "y = Relu (x)"),
    "a sequence": ('["" : 17]', "seq(float[n]) x", "float[n] y", "y = SequenceAt (x, i)"),
    "strings": ('["" : 17]', "float[n] x", "string[n] y", "y = Cast <to = 8> (x)"),
    "sizes that do not fit": ('["" : 17]', "float[1, n] x", "float[1, m] y",
                              'y = Pad <mode = "reflect"> (x, p)'),
}  # fmt: skip
"""Operator sets, inputs, outputs, and the node of models that cannot be run."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", UNRUNNABLE)
def test_inspect_shows_a_file_that_cannot_be_run(run, case, capsys):
    opsets, takes, gives, node = UNRUNNABLE[case]
    stored = "<int64 i = {0}, int64[4] p = {0, 64, 0, 64}, float[2] w = {1, 2}>"
    head = f"<ir_version: 8, opset_import: {opsets}>"
    text = f"{head}\ng ({takes}) => ({gives}) {stored} {{ {node} }}"
    Path("odd.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    code, found = run("inspect", "odd.onnx")
    assert (code, found["program"]) == (0, None)
    assert found["refused"]
    assert list(found["takes"]) == ["x"]
    assert list(found["ops"].values()) == [1]
    assert found["weights"]["tensors"] == 3
    assert bool(found["missing"]) == (case not in ("strings", "sizes that do not fit"))
    if not found["missing"]:
        assert "with the sizes n=8" in found["refused"]
    assert main(["inspect", "odd.onnx"]) == 0
    printed = capsys.readouterr().out
    assert "It cannot be run: " in printed
    assert "weights     3 tensors, 7 elements, 48 B" in printed


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run net.onnx --random-seed 1 --symbol batch=1 --symbol depth=8", "no free size `depth`"),
        ("forward --model net.onnx --symbol depth=8", "no free size `depth`"),
        ("bench forward --model net.onnx --symbol depth=8", "no free size `depth`"),
        ("forward --model net.onnx --input x.npz --symbol batch=77", "`batch=77` is asked for"),
        ("run net.onnx --input x.npz --symbol batch=77", "`batch=77` is asked for"),
    ],
)
def test_sizes_that_would_be_ignored_are_refused(run, words, message):
    code, found = run(*words.split(), *REF)
    assert code == 2
    assert message in found["message"]


def test_bench_measures_a_run(run):
    more = ("--rounds", "1", "--batch", "2", "--symbol", "height=4", *REF)
    code, found = run("bench", "forward", "--model", "net.onnx", *more)
    assert code == 0
    assert [row["work"] for row in found["rows"]] == [
        "load",
        "compile and first run of [2, 3, 4, 224]",
        "run of [2, 3, 4, 224]",
        "run of [2, 3, 4, 224], rate",
    ]


@pytest.mark.long
def test_validate_compares_with_a_file_a_model_and_a_backend(run):
    asked = ("validate", "--model", "net.onnx", "--input", "x.npz", "--backend", "numba")
    for against, expected in (("right.npz", 0), ("wrong.npz", 1), ("ref", 0), ("net.onnx", 0)):
        code, found = run(*asked, "--against", against)
        assert (code, found["agrees"]) == (expected, not expected)
    code, found = run(*asked, "--against", "numba")
    assert (code, "runs on `numba` itself" in found["message"]) == (2, True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "hi", "--model", "net.onnx"), "it has no tokenizer, settings or named"),
        (("forward", "--model", "net.onnx", "--weights", "q8"), "takes no `--weights`"),
        (("forward", "--symbol", "n=1"), "are for models that an importer reads"),
        (("validate", "--model", "net.onnx", "--per-layer"), "only the outputs"),
    ],
)
def test_what_an_imported_model_does_not_take_is_said(run, arguments, message):
    code, found = run(*arguments)
    assert code != 0
    assert message in found["message"]
    if arguments[0] == "generate":
        assert "from gptrs_onnx.model import load; load(path" in found["hint"]
