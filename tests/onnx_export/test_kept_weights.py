"""Weights in other files are recognized by later models of the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests write ONNX models")

import gptrs_onnx  # noqa: E402
from gptrs.api.importers import ModelInput, OutgoingModel, OutgoingTensor  # noqa: E402
from gptrs.api.programs import dtypes, parse_program  # noqa: E402
from gptrs.backend import weight_identity  # noqa: E402
from gptrs.errors import CheckpointError, ModelError  # noqa: E402
from gptrs_onnx.model import OnnxModel  # noqa: E402

PROGRAM = parse_program("""ptir.v0.5
func @main(%x: f32[?0, 256], %w: f32[256, 256]) -> f32[?0, 256] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, 256]
  return %0
}
""")
X = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)


def written(folder: Path, seed: int = 0) -> Path:
    weight = np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32)
    inputs = (ModelInput("x", dtypes.f32, ("batch", 256)),)
    model = OutgoingModel("m", PROGRAM, inputs, ("y",), (OutgoingTensor.of("w", weight),))
    return gptrs_onnx.export(model, folder / "m.onnx")[0]


def identity(model: OnnxModel) -> bytes | None:
    found = model.weights.identity_of("w")
    return None if found is None else found.digest


def test_a_weight_has_one_identity_in_all_models_of_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", -1 << 62)
    path = written(tmp_path)
    first, second = gptrs_onnx.load(path, "ref"), gptrs_onnx.load(path, "ref")
    assert identity(first) == identity(second) is not None
    before = identity(first)
    after = gptrs_onnx.load(written(tmp_path, seed=5), "ref")
    assert identity(after) != before
    expected = X @ np.random.default_rng(5).standard_normal((256, 256)).astype(np.float32)
    np.testing.assert_allclose(after(X)["y"], expected, atol=1e-3)


def test_numba_computes_with_weights_that_it_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", -1 << 62)
    path = written(tmp_path)
    results = [gptrs_onnx.load(path, "numba")(X)["y"].tobytes() for _ in range(2)]
    assert results[0] == results[1]


def test_a_data_file_that_is_cut_is_an_error(tmp_path) -> None:
    path = written(tmp_path)
    model = gptrs_onnx.load(path, "ref")
    (tmp_path / "m.onnx.data").write_bytes(b"short")
    with pytest.raises(CheckpointError):
        model(X)
    with pytest.raises(ModelError, match="ends at byte"):
        gptrs_onnx.load(path, "ref")
