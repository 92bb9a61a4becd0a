"""Models that are links, with data that is: caches of hubs hold files so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import ModelError  # noqa: E402


@pytest.mark.parametrize("layout", ["links to blobs", "a link to the model alone"])
def test_links_of_a_cache_lead_to_the_model_and_its_data(tmp_path: Path, layout: str) -> None:
    made = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 80] x) => (float[n, 80] y) { h = MatMul (x, w) y = Add (h, b) }""")
    rng = np.random.default_rng(0)
    stored = {"w": rng.random((80, 80), np.float32), "b": rng.random(80, np.float32)}
    for name, array in stored.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot" / "onnx"
    blobs.mkdir()
    folder.mkdir(parents=True)
    onnx.save(made, blobs / "m", save_as_external_data=True, location="d", size_threshold=9)
    (folder / "model.onnx").symlink_to(blobs / "m")
    if layout == "links to blobs":
        (folder / "d").symlink_to(blobs / "d")
    x = rng.random((3, 80), np.float32)
    found = gptrs_onnx.load(folder / "model.onnx", "ref")(x)["y"]
    np.testing.assert_allclose(found, x @ stored["w"] + stored["b"], 1e-5)
    (tmp_path / "elsewhere").write_bytes((blobs / "d").read_bytes())
    (blobs / "d").unlink()
    (blobs / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="outside the model's folder"):
        gptrs_onnx.load(folder / "model.onnx", "ref")
