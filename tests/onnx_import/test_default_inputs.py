"""Inputs whose defaults are initializers: calls may replace them, as in ONNX Runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import UsageError  # noqa: E402
from gptrs_cli.main import main  # noqa: E402

LARGE = np.random.default_rng(1).standard_normal((70, 60)).astype(np.float32)


def made(version: int = 8):
    """A graph of a small default, a large one, and one that decides a size."""
    model = parser.parse_model(f"""
    <ir_version: {version}, opset_import: ["" : 21]>
    g (float[k, 60] w, float[2] s, int64[r] shape, float[n, 70] x) => (float y)
      <float[2] s = {{1, 2}}, int64[2] shape = {{2, -1}}>
    {{ h = MatMul (x, w) r = Reshape (h, shape) t = Gather (s, one) y = Mul (r, t) }}""")
    more = [("w", LARGE), ("one", np.int64(1))]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in more)
    return model


def test_defaults_hold_until_a_call_replaces_them():
    proto = made()
    theirs = onnxruntime.InferenceSession(proto.SerializeToString())
    model = gptrs_onnx.from_proto(proto, "ref")
    x = LARGE[:, :30].T.copy()
    calls: list[dict[str, Any]] = [
        {},
        {"w": LARGE[::-1].copy()},
        {"s": np.array([5, -7], np.float32)},
        {"shape": np.array([5, -1, 4]), "w": -LARGE},
        {},
    ]
    for more in calls:
        (expected,) = theirs.run(None, {"x": x, **more})
        np.testing.assert_allclose(model(x, **more)["y"], expected, 1e-5, 1e-4)
    assert {name: each.optional for name, each in model.inputs.items()} == {
        "x": False, "w": True, "s": True, "shape": True
    }  # fmt: skip
    with pytest.raises(UsageError, match="got an array of"):
        model(x, s=np.zeros(3, np.float32))


def test_initializers_of_older_files_are_constants():
    model = gptrs_onnx.from_proto(made(3), "ref")
    assert list(model.inputs) == ["x"]
    with pytest.raises(UsageError, match="takes no input `s`"):
        model(LARGE[:, :3].T, s=np.zeros(2, np.float32))


def test_commands_show_and_take_them(tmp_path, capsys):
    file, inputs = tmp_path / "m.onnx", tmp_path / "in.npz"
    file.write_bytes(made().SerializeToString())
    assert main(["inspect", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    optional = {each["name"]: each["optional"] for each in told["inputs"]}
    assert optional == {"x": False, "w": True, "s": True, "shape": True}
    np.savez(inputs, x=LARGE[:, :2].T.copy(), s=np.zeros(2, np.float32))
    out = tmp_path / "out.npz"
    run = ["run", str(file), "--input", str(inputs), "--out", str(out), "--backend", "ref"]
    assert main(run) == 0
    with np.load(out) as results:
        np.testing.assert_array_equal(results["y"], np.zeros((2, 60)))
