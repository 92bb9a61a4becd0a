"""`gptrs convert` and `gptrs validate` take models that importers read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs.plugins.exporters import import_model
from gptrs_cli.main import main

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402

GRAPHS = {
    "free": """
        g (float[batch, n, 70] x) => (float[batch, n, 64] y) {
          h = MatMul (x, w)
          y = Relu (h)
        }""",
    "needs numbers": """
        g (float[batch, n, 70] x) => (float[batch, n, 64] y) {
          h = MatMul (x, w)
          s = Constant <value_ints = [2, 3, 64]> ()
          y = Reshape (h, s)
        }""",
    "quantized": """
        g (float[batch, n, 70] x) => (float[batch, n, 64] y)
        <float scale = {0.125}, int8 zero = {3}> {
          y = com.microsoft.DynamicQuantizeMatMul (x, q, scale, zero)
        }""",
    "by value": """
        g (float[batch, n, 70] x, int64[3] s) => (float[a, b, c] y) {
          h = MatMul (x, w)
          y = Reshape (h, s)
        }""",
}


def write_graph(name: str) -> str:
    text = f'<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n{GRAPHS[name]}'
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((70, 64)).astype(np.float32),
        "q": rng.integers(-9, 9, (70, 64)).astype(np.int8),
    }
    taken = {each for node in proto.graph.node for each in node.input}
    for each, array in weights.items():
        if each in taken:
            proto.graph.initializer.append(numpy_helper.from_array(array, each))
    Path("in.onnx").write_bytes(proto.SerializeToString())
    return "in.onnx"


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def outputs(path: str, *shape: int) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return gptrs_onnx.load(path, "ref")(x)["y"]


@pytest.mark.parametrize("name", ["free", "quantized"])
def test_a_graph_keeps_its_free_sizes(run: Run, name: str) -> None:
    code, found = run("convert", write_graph(name), "out.onnx")
    assert (code, found["kind"], found["format"]) == (0, "onnx", "onnx")
    assert (found["tensors"], found["parameters"]) == (1, 70 * 64)
    assert gptrs_onnx.load("out.onnx").inputs["x"].shape == ("batch", "n", 70)
    for shape in ((2, 3, 70), (1, 5, 70)):
        np.testing.assert_allclose(outputs("out.onnx", *shape), outputs("in.onnx", *shape), 1e-6)


def test_sizes_are_fixed_where_they_are_given(run: Run) -> None:
    code, _ = run("convert", write_graph("free"), "out.onnx", "--symbol", "n=3")
    assert code == 0
    assert gptrs_onnx.load("out.onnx").inputs["x"].shape == ("batch", 3, 70)
    np.testing.assert_allclose(outputs("out.onnx", 2, 3, 70), outputs("in.onnx", 2, 3, 70), 1e-6)
    code, found = run("convert", "in.onnx", "more.onnx", "--symbol", "depth=3")
    assert (code, found["hint"]) == (2, "it has batch, n")


def test_sizes_that_must_be_numbers_are_named(run: Run) -> None:
    source = write_graph("needs numbers")
    code, found = run("convert", source, "out.onnx")
    assert code
    assert "for all sizes, nor with batch=1, n=8: " in found["message"]
    assert found["hint"] == "fix them: --symbol batch=SIZE --symbol n=SIZE"
    fixed = ("--symbol", "batch=2", "--symbol", "n=3")
    assert run("convert", source, "out.onnx", *fixed)[0] == 0
    np.testing.assert_allclose(outputs("out.onnx", 2, 3, 70), outputs("in.onnx", 2, 3, 70), 1e-6)


@pytest.mark.parametrize(
    ("graph", "destination", "message"),
    [
        ("free", "in.onnx", "would be overwritten while it is read"),
        ("free", "folder", "would be a model of gptrs"),
        ("free", "out.safetensors", "would be a model of gptrs"),
        ("by value", "out.onnx", "sizes that the values of an input decide"),
    ],
)
def test_what_cannot_be_written_is_refused(
    run: Run, graph: str, destination: str, message: str
) -> None:
    more = ("--symbol", "batch=2", "--symbol", "n=3") if graph == "by value" else ()
    code, found = run("convert", write_graph(graph), destination, "--force", *more)
    assert code
    assert message in found["message"]
    assert destination == "in.onnx" or not Path(destination).exists()


def test_a_graph_becomes_stablehlo(run: Run) -> None:
    pytest.importorskip("jax", reason="its package writes StableHLO")
    assert run("convert", write_graph("free"), "out.mlir", "--symbol", "batch=2")[0] == 0
    written = import_model("out.mlir", "stablehlo", gptrs.get_backend("ref"))
    x = np.random.default_rng(1).standard_normal((2, 3, 70)).astype(np.float32)
    (found,) = written(x).values()
    np.testing.assert_allclose(found, outputs("in.onnx", 2, 3, 70), 1e-5, 1e-6)
    code, told = run("validate", "--model", "out.mlir")
    assert (code, "what should it agree with" in told["message"]) == (2, True)


def test_an_onnx_file_is_validated_against_onnx_runtime(run: Run, monkeypatch) -> None:
    pytest.importorskip("onnxruntime", reason="the peer that runs the same file")
    sizes = ("--symbol", "batch=2", "--symbol", "n=3", "--backend", "ref")
    code, found = run("validate", "--model", write_graph("quantized"), *sizes)
    assert (code, found["agrees"]) == (0, True)
    assert found["reference"].startswith("ONNX Runtime 1.")
    monkeypatch.setattr(
        "gptrs_onnx.reference.import_module", lambda _: (_ for _ in ()).throw(ImportError)
    )
    code, found = run("validate", "--model", "in.onnx", *sizes)
    assert code
    assert found["hint"].startswith("`pip install onnxruntime`, or name another reference")
